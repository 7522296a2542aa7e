// Command testregistry runs internal/registry as a process of its own, for scripts and benchmarks.
//
// The first line on stdout is host:port. Beside the registry it answers:
//
//	GET  /_stats             the statistics, as JSON (none of these requests is counted)
//	GET  /_records           each request, as JSON
//	POST /_reset             forget statistics and records
//	POST /_latency?d=20ms    change the latency
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/slimctl/slimctl/internal/registry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "testregistry:", err)
		os.Exit(1)
	}
}

// run serves until ctx is done, then writes the statistics.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o registry.Options
	var loads []string
	fs := flag.NewFlagSet("testregistry", flag.ContinueOnError)
	fs.SetOutput(stderr)
	addr := fs.String("addr", "127.0.0.1:0", "`host:port` to listen on")
	statsFile := fs.String("stats-file", "", "`file` that gets the statistics at the end")
	fs.StringVar(&o.Dir, "dir", "", "`directory` for blobs (default: in memory)")
	fs.DurationVar(&o.Latency, "latency", 0, "`time` added to each request")
	fs.BoolVar(&o.NoMount, "no-mount", false, "refuse mounts")
	fs.StringVar(&o.User, "user", "", "`name` to ask for; the password is $TESTREGISTRY_PASSWORD")
	fs.BoolVar(&o.Bearer, "bearer", false, "with -user: bearer tokens instead of basic")
	fs.Func("load", "`repo:tag=DIR`: an OCI layout to start with; repeatable", func(s string) error {
		loads = append(loads, s)
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return err
	}
	o.Password = os.Getenv("TESTREGISTRY_PASSWORD")
	r, err := registry.New(o)
	if err != nil {
		return err
	}
	for _, l := range loads {
		if err := load(r, l); err != nil {
			return err
		}
	}
	s, err := r.Listen(ctx, *addr, withControls(r))
	if err != nil {
		return err
	}
	defer s.Stop()
	fmt.Fprintln(stdout, s.Host)
	<-ctx.Done()
	return writeStats(*statsFile, r.Stats())
}

func load(r *registry.Registry, arg string) error {
	ref, dir, ok := strings.Cut(arg, "=")
	repo, tag, tagged := strings.Cut(ref, ":")
	if !ok || !tagged {
		return fmt.Errorf("-load %q is not repo:tag=DIR", arg)
	}
	return r.LoadLayout(repo, tag, dir)
}

func withControls(r *registry.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /_stats", func(w http.ResponseWriter, _ *http.Request) { answer(w, r.Stats()) })
	mux.HandleFunc("GET /_records", func(w http.ResponseWriter, _ *http.Request) { answer(w, r.Records()) })
	mux.HandleFunc("POST /_reset", func(http.ResponseWriter, *http.Request) { r.Reset() })
	mux.HandleFunc("POST /_latency", func(w http.ResponseWriter, req *http.Request) {
		d, err := time.ParseDuration(req.URL.Query().Get("d"))
		if err != nil || d < 0 {
			http.Error(w, fmt.Sprintf("d=%q is not a duration like 20ms", req.URL.Query().Get("d")), http.StatusBadRequest)
			return
		}
		r.SetLatency(d)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.URL.Path, "/_") {
			mux.ServeHTTP(w, req)
			return
		}
		r.ServeHTTP(w, req) // not through the mux, which would clean paths before the registry can refuse them
	})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client has gone
}

func writeStats(path string, s registry.Stats) (err error) {
	if path == "" {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".stats-*")
	if err != nil {
		return fmt.Errorf("stats file: %w", err)
	}
	defer os.Remove(f.Name()) // gone already when all went well
	enc := json.NewEncoder(f)
	enc.SetIndent("", "  ")
	if err := cmp.Or(enc.Encode(s), f.Close()); err != nil {
		return fmt.Errorf("stats file: %w", err)
	}
	return os.Rename(f.Name(), path)
}
