package cage

import (
	"bytes"
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// holder is a process, as /proc shows it to other accounts, too.
type holder struct {
	identity
	parent  int
	faults  int64 // bytes of memory that it has touched for the first time
	private int64 // bytes that it shares with nobody
	score   int   // its oom_score_adj
}

// identity distinguishes a process from a later one with the same number.
type identity struct {
	pid     int
	started uint64 // in ticks since the machine's start
}

// ledger attributes memory to the processes of pages. A part of what a page holds is in Chromium's main process: Blobs,
// and the storage of a BrowserContext. When that process grows, its growth is attributed to the processes that touched
// memory meanwhile, since they send it everything.
type ledger struct {
	program int // the main process
	score   int // that of pages' processes, at least: see startScore

	own    int64 // bytes of the main process and the helpers that it has started
	pages  map[identity]holder
	credit map[identity]float64 // bytes that they hold in them
}

// update reads the processes anew.
func (l *ledger) update(all []holder) {
	own, touched, held := int64(0), 0.0, 0.0
	pages, credit := map[identity]holder{}, map[identity]float64{}
	for _, h := range all {
		switch {
		case h.pid == l.program || h.parent == l.program:
			own += h.private
		case h.score >= l.score:
			pages[h.identity], credit[h.identity] = h, l.credit[h.identity]
			touched += float64(h.faults - l.pages[h.identity].faults)
			held += credit[h.identity]
		}
	}
	grown := float64(own - l.own)
	for id, h := range pages {
		switch {
		case grown > 0 && touched > 0 && l.pages != nil:
			credit[id] += grown * float64(h.faults-l.pages[id].faults) / touched
		case grown < 0 && held > 0:
			credit[id] *= max(0, 1+grown/held)
		}
	}
	l.own, l.pages, l.credit = own, pages, credit
}

// findVictim returns the page's process that holds most, and how many bytes that are. If none holds an eighth of the
// limit it is their number that is too large. It returns the newest one then.
func (l *ledger) findVictim(limit int64) (victim holder, holds int64) {
	for id, h := range l.pages {
		if n := h.private + int64(l.credit[id]); n > holds {
			victim, holds = h, n
		}
	}
	if holds < limit/8 && len(l.pages) > 0 {
		victim = slices.MaxFunc(slices.Collect(maps.Values(l.pages)), func(a, b holder) int { return cmp.Compare(a.started, b.started) })
		holds = victim.private + int64(l.credit[victim.identity])
	}
	return victim, holds
}

// watchMemory ends processes of pages while seven eighths of the memory are in use, until the program has ended. The
// kernel acts when all of it is, and may end the main process with all pages. If files take the memory that the
// program may write, watchMemory ends the program, whose next start removes them.
func (r Rules) watchMemory(program int, measure func() (used, limit int64), say func(string, ...any)) {
	l := ledger{program: program, score: min(readOOMScore("self")+startScore, 1000)}
	if l.score <= readOOMScore("self") {
		return // the pages' processes can't be told from others
	}
	var last time.Time // of an end
	var level int64    // what was in use then
	for {
		used, limit := measure()
		main, ok := readHolder(program)
		if limit == 0 || !ok {
			return
		}
		if used > limit/2 {
			l.update(readHolders())
		}
		// What a process held is free a moment after its end.
		if full := limit - limit/8; used > full && (time.Since(last) > time.Second || used > level+limit/32) {
			victim, holds := l.findVictim(limit)
			if files := r.countFiles(); holds < limit/8 && files > limit/4 {
				victim, holds = main, files
			}
			if now, ok := readHolder(victim.pid); ok && now.identity == victim.identity {
				say("%d of %d MiB of memory are in use: ending process %d, which holds %d", used>>20, limit>>20, victim.pid, holds>>20)
				_ = unix.Kill(victim.pid, unix.SIGKILL) // it may have ended
			}
			last, level = time.Now(), used
		}
		const fastest = 512 << 20 // bytes a second
		time.Sleep(min(max(time.Duration(limit-limit/8-used)*time.Second/fastest, 100*time.Millisecond), time.Second))
	}
}

// countFiles returns the bytes of memory in the files that the program may write.
func (r Rules) countFiles() (bytes int64) {
	seen := map[unix.Fsid]bool{}
	for _, path := range r.Write {
		var fs unix.Statfs_t
		if unix.Statfs(path, &fs) == nil && fs.Type == unix.TMPFS_MAGIC && !seen[fs.Fsid] {
			seen[fs.Fsid] = true
			bytes += int64(fs.Blocks-fs.Bfree) * fs.Bsize
		}
	}
	return bytes
}

// readHolders returns all processes. One that ends meanwhile is left out.
func readHolders() (all []holder) {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if h, ok := readHolder(pid); ok {
			all = append(all, h)
		}
	}
	return all
}

// readHolder reads stat and statm of a process (proc_pid_stat(5), proc_pid_statm(5)).
func readHolder(pid int) (holder, bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err1 := os.ReadFile(dir + "/stat")
	statm, err2 := os.ReadFile(dir + "/statm")
	end := bytes.LastIndexByte(stat, ')') // the name may contain any character
	if err1 != nil || err2 != nil || end < 0 {
		return holder{}, false
	}
	fields, pages := strings.Fields(string(stat[end+1:])), strings.Fields(string(statm))
	if len(fields) < 20 || len(pages) < 3 || fields[0] == "Z" {
		return holder{}, false
	}
	number := func(text string) int64 {
		n, _ := strconv.ParseInt(text, 10, 64) // the kernel wrote it
		return n
	}
	page := int64(os.Getpagesize())
	return holder{
		identity{pid, uint64(number(fields[19]))}, int(number(fields[1])),
		number(fields[7]) * page, (number(pages[1]) - number(pages[2])) * page, readOOMScore(strconv.Itoa(pid)),
	}, true
}

// measureCgroup returns how much of its memory the container uses, without what the kernel gives up when it needs it,
// and the limit: that of the control group (cgroup v2 and v1), or the machine's memory. The limit is 0 if unknown.
func measureCgroup() (used, limit int64) {
	const root = "/sys/fs/cgroup"
	number := func(file string) int64 {
		text, _ := os.ReadFile(file)
		n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return n
	}
	var machine unix.Sysinfo_t
	_ = unix.Sysinfo(&machine) // never fails
	own, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(own)) {
		_, line, _ = strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(line, ":")
		base, current, most, prefix := root, "memory.current", "memory.max", ""
		if controllers == "memory" {
			base, current, most, prefix = root+"/memory", "memory.usage_in_bytes", "memory.limit_in_bytes", "total_"
		}
		for _, dir := range []string{filepath.Join(base, path), base} { // the second where only the container's own is mounted
			if used = number(filepath.Join(dir, current)); used == 0 {
				continue
			}
			stat, _ := os.ReadFile(filepath.Join(dir, "memory.stat"))
			for line := range strings.Lines(string(stat)) {
				if name, n, _ := strings.Cut(strings.TrimSpace(line), " "); name == prefix+"inactive_file" || name == prefix+"active_file" {
					bytes, _ := strconv.ParseInt(n, 10, 64) // the kernel wrote it
					used -= bytes
				}
			}
			limit = int64(machine.Totalram) * int64(machine.Unit)
			if n := number(filepath.Join(dir, most)); n > 0 { // "max" is none
				limit = min(limit, n)
			}
			return used, limit
		}
	}
	return 0, 0
}
