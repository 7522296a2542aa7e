package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/mcp"
	"github.com/slimctl/slimctl/inspect/nginx"
	"github.com/slimctl/slimctl/inspect/packages"
	"github.com/slimctl/slimctl/inspect/privilege"
	"github.com/slimctl/slimctl/inspect/size"
	"github.com/slimctl/slimctl/inspect/start"
	"github.com/slimctl/slimctl/inspect/supervisord"
)

// directoryDepth is the number of directory levels in Surface.Size.
const directoryDepth = 3

// Read reads the surface of img, whose files were opened as files. reference is the image's name as its user wrote it.
// Uninterpretable content becomes a Note; an error reports that reading failed.
func Read(ctx context.Context, reference string, img v1.Image, files *tree.Image) (*Image, error) {
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	raw, err := img.RawManifest()
	if err != nil {
		return nil, err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return nil, err
	}
	out := &Image{Reference: reference, Digest: digest, RawManifest: raw, Annotations: manifest.Annotations, RawConfig: config, Files: files}
	if p := files.Config.Platform(); p != nil {
		out.Platform = *p
	}
	s := &Surface{Reference: reference, Digest: digest.String(), Platform: out.Platform.String(), Config: configOf(files.Config)}
	out.Surface = s
	var packageNotes []tree.Note
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		if out.Packages, err = packages.Read(gctx, files); err != nil {
			return fmt.Errorf("packages: %w", err)
		}
		s.Packages, packageNotes = out.Packages.Packages, out.Packages.Notes
		s.Size = size.Of(files, out.Packages, directoryDepth)
		return nil
	})
	g.Go(func() error {
		report, err := privilege.Read(gctx, files)
		if err != nil {
			return fmt.Errorf("accounts: %w", err)
		}
		s.Privilege = *report
		return nil
	})
	g.Go(func() error { return s.readPrograms(gctx, files) })
	if err := g.Wait(); err != nil {
		return nil, err
	}
	s.Notes = append(s.Notes, s.Privilege.Notes...)
	s.Notes = append(s.Notes, packageNotes...)
	return out, nil
}

// readPrograms reads the results of the start: programs, routes, servers, listeners.
func (s *Surface) readPrograms(ctx context.Context, files *tree.Image) error {
	s.Line = start.Line(files)
	started, err := start.Read(ctx, files, &files.Config.Config)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	s.Start = *started
	env := s.Start.Values(s.Config.Env)
	if err := s.readSupervisord(ctx, files, env); err != nil {
		return err
	}
	commands, err := s.followPrograms(ctx)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	s.Notes = append(s.Notes, s.Start.Notes...)
	if err := s.readNginx(ctx, files, commands, env); err != nil {
		return err
	}
	if s.Supervisord != nil {
		listeners, notes, err := supervisord.Listeners(ctx, files, s.Supervisord, commands, env)
		if err != nil {
			return fmt.Errorf("listeners: %w", err)
		}
		for _, l := range listeners {
			s.addListener(Listener(l))
		}
		s.Notes = append(s.Notes, notes...)
	}
	names := make([]string, len(s.Programs))
	for i, p := range s.Programs {
		names[i] = p.Name
	}
	servers, err := mcp.Read(ctx, files, names)
	if err != nil {
		return fmt.Errorf("MCP servers: %w", err)
	}
	s.MCP = *servers
	s.Notes = append(s.Notes, s.MCP.Notes...)
	return nil
}

func (s *Surface) readSupervisord(ctx context.Context, files *tree.Image, env map[string]string) error {
	s.Programs = []supervisord.Program{}
	var read []*supervisord.Config
	if s.Start.Supervisord != "" {
		c, err := supervisord.Read(ctx, files, s.Start.Supervisord, env)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			s.addNote(files, s.Start.Supervisord, "supervisord is started with this file, and it isn't there")
		case err != nil:
			return fmt.Errorf("supervisord: %w", err)
		default:
			s.Supervisord, s.Programs = c, c.Programs
			s.Notes = append(s.Notes, c.Notes...)
			read = append(read, c)
		}
	}
	var err error
	if s.Dormant, err = supervisord.Dormant(ctx, files, read...); err != nil {
		return fmt.Errorf("supervisord: %w", err)
	}
	return nil
}

// followPrograms follows each program's command through its scripts. The result maps programs to the commands that
// finally run.
func (s *Surface) followPrograms(ctx context.Context) (map[string][][]string, error) {
	jobs := make([]start.Job, 0, len(s.Programs))
	for _, p := range s.Programs {
		words, err := p.Args(nil)
		if err != nil {
			s.Notes = append(s.Notes, tree.Note{Place: p.Place, Text: fmt.Sprintf("command of %s: %v", p.Name, err)})
		}
		jobs = append(jobs, start.Job{
			Name: p.Name, Command: words, Autostart: p.Autostart, Uses: []string{p.User, p.Directory, p.Processes},
			Environment: p.Environment, Place: p.Place,
		})
	}
	return s.Start.Follow(ctx, jobs)
}

func (s *Surface) addNote(files *tree.Image, p, text string) {
	s.Notes = append(s.Notes, tree.Note{Place: files.Place(p, 0), Text: text})
}

func (s *Surface) readNginx(ctx context.Context, files *tree.Image, commands map[string][][]string, env map[string]string) error {
	o := nginx.Options{Env: maps.Clone(env), Rendered: map[string][]nginx.Template{}, Made: s.Start.Made()}
	for _, r := range s.Start.Renderings {
		if r.Dormant {
			continue
		}
		o.Rendered[r.Output] = append(o.Rendered[r.Output], nginx.Template{Path: r.Template, Variables: r.Variables, Once: r.Once})
		maps.Copy(o.Env, r.Values)
	}
	s.Routes, s.Listeners = []nginx.Route{}, []Listener{}
	seen := map[string]bool{}
	for _, main := range s.findNginxMains(commands) {
		configs, err := nginx.Read(ctx, files, main, o)
		if errors.Is(err, fs.ErrNotExist) {
			s.addNote(files, main, "nginx is started with this file, and it isn't there")
			continue
		}
		if err != nil {
			return fmt.Errorf("nginx: %w", err)
		}
		s.Nginx = append(s.Nginx, configs...)
		for i := range configs {
			for _, r := range configs[i].Routes() {
				if key := fmt.Sprint(r.Path, r.Target, r.Auth, r.Place, r.Public, r.Open, r.Also); !seen[key] {
					seen[key] = true
					s.Routes = append(s.Routes, r)
				}
			}
			for _, server := range configs[i].Servers {
				for _, l := range server.Listen {
					s.addListener(Listener{Address: l.Address, Port: l.Port, Loopback: l.Loopback, By: "nginx", Place: l.Place})
				}
			}
			s.Notes = append(s.Notes, configs[i].Notes...)
		}
	}
	return nil
}

// addListener adds a listener unless it is already there.
func (s *Surface) addListener(l Listener) {
	same := func(o Listener) bool { return o.Address == l.Address && o.Port == l.Port && o.By == l.By }
	if !slices.ContainsFunc(s.Listeners, same) {
		s.Listeners = append(s.Listeners, l)
	}
}

// defaultNginx is the default main file, with the paths of Debian and Ubuntu.
const defaultNginx = "/etc/nginx/nginx.conf"

// findNginxMains returns the main files of every program that runs nginx.
func (s *Surface) findNginxMains(commands map[string][][]string) []string {
	var mains []string
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		for _, words := range commands[name] {
			if len(words) == 0 || path.Base(words[0]) != "nginx" {
				continue
			}
			main := defaultNginx
			for i, w := range words {
				if w == "-c" && i+1 < len(words) {
					main = words[i+1]
				} else if rest, ok := strings.CutPrefix(w, "-c"); ok && rest != "" {
					main = rest
				}
			}
			if strings.ContainsAny(main, "%$?") {
				mains = append(mains, s.chosenMains(main)...)
				continue
			}
			mains = append(mains, image.Clean(main))
		}
	}
	slices.Sort(mains)
	return slices.Compact(mains)
}

// chosenMains returns the main files to which a variable in the command may expand, from the start's choices.
func (s *Surface) chosenMains(expression string) []string {
	for _, sw := range s.Start.Choices {
		if strings.Contains(expression, sw.Variable) {
			return sw.Values
		}
	}
	s.Notes = append(s.Notes, tree.Note{Text: fmt.Sprintf("nginx's main file is %s, and what that may be isn't known", expression)})
	return nil
}

func configOf(c *v1.ConfigFile) Config {
	out := Config{
		Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd, User: c.Config.User, WorkingDir: c.Config.WorkingDir,
		Env: map[string]string{}, Labels: c.Config.Labels, StopSignal: c.Config.StopSignal,
		ExposedPorts: slices.Sorted(maps.Keys(c.Config.ExposedPorts)), Volumes: slices.Sorted(maps.Keys(c.Config.Volumes)),
	}
	if c.Config.Healthcheck != nil {
		out.Healthcheck = c.Config.Healthcheck.Test
	}
	for _, e := range c.Config.Env {
		k, v, _ := strings.Cut(e, "=")
		out.Env[k] = v
	}
	return out
}
