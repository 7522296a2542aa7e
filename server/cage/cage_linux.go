package cage

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Supervise and Enter exchange three small messages over a socket pair; fdEnter is Enter's descriptor of it.
const (
	fdEnter    = 3
	maxMessage = 4096
)

// hello is Enter's first message. The supervisor tries to read the word from Enter's memory.
type hello struct {
	At   uint64 `json:"at"`
	Word string `json:"word"`
}

// entered is Enter's second message, from inside the cage.
type entered struct {
	Parts Parts  `json:"parts"`
	Error string `json:"error,omitempty"`
}

// Supervise starts a program in a cage and waits for its end. enter is the command that calls Enter with the same
// rules. The supervisor is this process: when it ends, so does the program. say takes lines for the log.
func Supervise(r Rules, enter *exec.Cmd, say func(format string, args ...any)) error {
	score := 0
	if r.Display != "" {
		score = startScore
	}
	parts, listener, err := startEnter(enter, score)
	if err != nil {
		return err
	}
	say("%s", parts)
	if r.Proxy != 0 { // a browser
		go r.watchMemory(enter.Process.Pid, measureCgroup, say)
	}
	if listener >= 0 {
		go func() {
			s := supervisor{rules: r, listener: listener, program: enter.Process.Pid}
			err := s.run(limitReports(say))
			unix.Close(listener)
			if err != nil {
				say("%v", err)
				_ = enter.Process.Kill() // what it asks would wait for ever
			}
		}()
	}
	return enter.Wait()
}

// Probe returns the parts that a cage has here. enter is the command that calls Enter, for a program that can't be
// started.
func Probe(enter *exec.Cmd) (Parts, error) {
	parts, listener, err := startEnter(enter, 0)
	if err != nil {
		return Parts{}, err
	}
	if listener >= 0 {
		unix.Close(listener)
	}
	_ = enter.Wait() // it has failed, as it should
	return parts, nil
}

// startEnter starts the command that calls Enter, and waits until it is in its cage. listener is -1 without a
// supervisor's part; score is for setScore.
func startEnter(enter *exec.Cmd, score int) (parts Parts, listener int, err error) {
	ours, theirs, err := openPair()
	if err != nil {
		return Parts{}, -1, err
	}
	defer unix.Close(ours)
	enter.ExtraFiles = []*os.File{theirs}
	enter.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the signal comes with the end of the thread that started it
	err = enter.Start()
	theirs.Close()
	if err != nil {
		return Parts{}, -1, fmt.Errorf("start the cage: %w", err)
	}
	setScore(enter.Process.Pid, score)
	parts, listener, err = receiveEntered(ours, enter.Process.Pid)
	if err != nil {
		_ = enter.Process.Kill()                                     // it may have ended
		return Parts{}, -1, fmt.Errorf("%w (%v)", err, enter.Wait()) // an ExitError is for the program's own end
	}
	return parts, listener, nil
}

// startScore is added to the OOM score of a program until it connects to the display. What it has started by then, and
// what that starts, keeps it (proc_pid_oom_score_adj(5)): of Chromium those are the zygotes with all renderers. When a
// page takes too much memory its renderer is killed, not the browser with the pages of all sessions. Chromium sets such
// scores itself, by files in /proc that it can't write from its cage.
const startScore = 300

// setScore makes the OOM score of a process larger than this one's. Without the right it stays as it is.
func setScore(pid, more int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(min(readOOMScore("self")+more, 1000))), 0)
}

// readOOMScore returns the oom_score_adj of a process, which is 0 if it can't be read.
func readOOMScore(pid string) int {
	text, _ := os.ReadFile("/proc/" + pid + "/oom_score_adj")
	score, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return score
}

// limitReports returns a function that logs each refusal once, and the first hundred: the program decides what it tries.
func limitReports(say func(string, ...any)) func(pid int, what string) {
	known := map[string]bool{}
	return func(pid int, what string) {
		if known[what] || len(known) == 100 {
			return
		}
		known[what] = true
		say("process %d may not %.200s", pid, what)
		if len(known) == 100 {
			say("no more is said of others")
		}
	}
}

// openPair opens a pair of connected sockets that keep message boundaries.
func openPair() (ours int, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, nil, fmt.Errorf("socketpair: %w", err)
	}
	return fds[0], os.NewFile(uintptr(fds[1]), "cage"), nil
}

// receiveEntered is the supervisor's side of Enter.
func receiveEntered(sock, pid int) (parts Parts, listener int, err error) {
	var h hello
	if _, err := receiveMessage(sock, &h); err != nil {
		return Parts{}, -1, err
	}
	have, err := readMemory(pid, h.At, uint64(len(h.Word)))
	if _, err := unix.Write(sock, []byte{boolByte(err == nil && string(have) == h.Word)}); err != nil {
		return Parts{}, -1, err
	}
	var e entered
	listener, err = receiveMessage(sock, &e)
	if err == nil && e.Error != "" {
		err = errors.New(e.Error)
	}
	return e.Parts, listener, err
}

// receiveMessage reads a message and the descriptor that comes with it, or -1.
func receiveMessage(sock int, to any) (fd int, err error) {
	buf, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
	n, oob, _, _, err := syscall.Recvmsg(sock, buf, rights, unix.MSG_CMSG_CLOEXEC)
	if err == nil {
		err = json.Unmarshal(buf[:n], to)
	}
	if err != nil {
		return -1, fmt.Errorf("the cage doesn't answer: %w", err)
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:oob])
	if err != nil || len(messages) != 1 {
		return -1, nil //nolint:nilerror // none came
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, nil //nolint:nilerror // the same
	}
	return fds[0], nil
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// word is the memory that the supervisor tries to read.
var word = []byte("the supervisor reads this")

// Enter makes this process, which Supervise has started, the program in its cage. With whole it doesn't when a part is
// missing; the error is an ErrIncomplete then. It returns an error, or not at all.
func (r Rules) Enter(argv, env []string, whole bool) error {
	runtime.LockOSThread() // the filter is this thread's, and exec keeps the calling thread's
	readable, err := greetSupervisor()
	if err != nil {
		return fmt.Errorf("greet the cage's supervisor: %w", err)
	}
	parts := Parts{Landlock: landlockABI(), Supervisor: readable}
	listener, err := r.confineThread(&parts, whole)
	if err := errors.Join(err, reportEntered(parts, err, listener)); err != nil {
		return err
	}
	if listener >= 0 {
		unix.Close(listener)
	}
	return fmt.Errorf("start %s: %w", argv[0], syscall.Exec(argv[0], argv, env))
}

// confineThread applies Landlock and the filter to this thread.
func (r Rules) confineThread(parts *Parts, whole bool) (listener int, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, fmt.Errorf("no new privileges: %w", err)
	}
	if err := r.restrictThread(parts.Landlock); err != nil {
		return -1, err
	}
	listener, err = r.chooseFilter(parts)
	if err == nil && whole {
		err = parts.Whole()
	}
	return listener, err
}

// greetSupervisor lets the supervisor try to read this process's memory.
func greetSupervisor() (readable bool, err error) {
	unix.CloseOnExec(fdEnter)
	// It ends with its supervisor. The setting is a thread's, so the one that Supervise made is lost in a program of
	// several.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return false, err
	}
	text, err := json.Marshal(hello{uint64(uintptr(unsafe.Pointer(&word[0]))), string(word)})
	if err != nil {
		return false, err
	}
	if err := syscall.Sendmsg(fdEnter, text, nil, nil, unix.MSG_NOSIGNAL); err != nil {
		return false, err
	}
	answer := []byte{0}
	n, err := unix.Read(fdEnter, answer)
	if err == nil && n == 0 {
		err = errors.New("the supervisor has ended")
	}
	return answer[0] == 1, err
}

// reportEntered sends the listener to the supervisor, or the reason why there is none.
func reportEntered(parts Parts, why error, listener int) error {
	e := entered{Parts: parts}
	if why != nil {
		e.Error = why.Error()
	}
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	var rights []byte
	if listener >= 0 && why == nil {
		rights = syscall.UnixRights(listener)
	}
	return syscall.Sendmsg(fdEnter, text, rights, nil, unix.MSG_NOSIGNAL)
}

// chooseFilter installs the strongest filter that the kernel takes, and records in parts which one that is.
func (r Rules) chooseFilter(parts *Parts) (listener int, err error) {
	prog, err := r.assembleFilter(parts.Supervisor)
	if err != nil {
		return -1, err
	}
	listener, err = installFilter(prog, parts.Supervisor)
	if err != nil && parts.Supervisor {
		parts.Supervisor = false
		return r.chooseFilter(parts)
	}
	parts.Filter = err == nil // a missing part is no error: see Whole
	return listener, nil
}
