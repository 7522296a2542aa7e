package acceptance

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"html"
	"image/png"
	"io"
	"math/big"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/policy"
)

// site is a page that slimctl serves to the image's browser, to observe the browser from outside.
type site struct {
	host, mark string // mark is known to readers of the page only
	policy     *policy.Policy
	told       chan string // the text that the page sent after a click on its button
	// certificate is self-signed.
	certificate tls.Certificate
}

// newSite serves a page at a host that the image's policy allows; the error is the reason why there is none.
func newSite(file []byte) (*site, error) {
	p, err := policy.Parse(file)
	if err != nil {
		return nil, fmt.Errorf("the image's policy can't be read: %w", err)
	}
	// Unlike a secret: the tool hides texts that look like one.
	s := &site{policy: p, mark: fmt.Sprintf("page %d", 10_000+rand.IntN(90_000)), told: make(chan string, 1)} //nolint:gosec // it is no secret
	for _, host := range p.Open.AllowHosts {
		if host == policy.AnyHost {
			host = "example.com"
		}
		if below, ok := strings.CutPrefix(host, "*."); ok {
			host = "slimctl." + below
		}
		if u, refused := p.CheckURL("http://" + host + "/"); refused == nil {
			s.host = u.Host
			s.certificate, err = newCertificate(s.host)
			return s, err
		}
	}
	return nil, errors.New("the image's policy allows no http:// page")
}

// ServeHTTP serves the page, and receives its text.
func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method + r.URL.Path {
	case "GET/":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, `<!doctype html><title>slimctl verify</title><input id="text" aria-label="Text"><button id="send">Send %s</button>
<select><option>one<option>two</select><input type="date"><input type="file"><video controls></video>
<p>中文 日本語 한국어 العربية עברית ไทย हिन्दी Ελληνικά Русский 😀 ∑ <i style="font-family:serif">serif</i> <b style="font-family:monospace">monospace</b>
<u style="font-family:system-ui">system-ui</u> <s style="font-family:cursive">cursive</s> <q style="font-family:fantasy">fantasy</q></p>
<script>document.getElementById("send").onclick = async () => {
	await fetch("/told", {method: "POST", body: document.getElementById("text").value});
	document.body.insertAdjacentHTML("beforeend", '<p id="done">Done</p>');
}</script>`, html.EscapeString(s.mark))
	case "POST/told":
		text, _ := io.ReadAll(io.LimitReader(r.Body, 1<<10)) // a partial text differs
		select {
		case s.told <- string(text):
		default:
		}
	default:
		if r.Method == http.MethodConnect {
			s.serveTLS(w)
			return
		}
		http.NotFound(w, r)
	}
}

// serveTLS answers a CONNECT request with a TLS server that has a self-signed certificate.
func (s *site) serveTLS(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	c := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{s.certificate}, MinVersion: tls.VersionTLS12})
	if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil { // the browser accepted the certificate
		_ = r.Body.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\ntaken")
		_ = c.Close()
	}
}

// newCertificate returns a self-signed certificate.
func newCertificate(host string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(cryptorand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// nowhere is a network without names and addresses: a tested image can only reach the site.
var nowhere = policy.Network{Resolver: noNames{}, Public: func(netip.Addr) bool { return false }}

type noNames struct{}

func (noNames) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// timeLimit matches the words of a call that failed for its time alone.
var timeLimit = regexp.MustCompile(`(?i)\btime(d )?out\b`)

// browse uses the browser through the tool, like an agent. On a busy machine it tries twice, and calls that time out for
// as long as the image has to become healthy.
func (b *box) browse(ctx context.Context, session *mcp.ClientSession, tool string) {
	began := time.Now()
	err := b.visit(ctx, session, tool)
	for again := true; again && err != nil && ctx.Err() == nil; again = err != nil && timeLimit.MatchString(err.Error()) && time.Since(began) < b.Patience {
		err = b.visit(ctx, session, tool)
	}
	if err != nil {
		b.addFinding("run-tool", tool, "%s can't do an agent's work: %s", tool, err)
	}
}

func (b *box) visit(ctx context.Context, session *mcp.ClientSession, tool string) error {
	text := "typed on " + b.site.mark
	var failed error
	step := func(argv ...string) (a toolAnswer) {
		switch {
		case failed != nil:
			return a
		case !slices.Contains(b.site.policy.Commands, argv[0]):
			b.unchecked("%s on a page: the image's policy doesn't have it", argv[0])
			return a
		}
		a, err := call(ctx, session, tool, argv)
		if err != nil {
			failed = fmt.Errorf("%q: %s", argv, quote(err.Error()))
		} else if a.code != 0 {
			failed = fmt.Errorf("%q has exit code %d: %s", argv, a.code, quote(a.stderr))
		}
		return a
	}
	select { // left by an earlier try
	case <-b.site.told:
	default:
	}
	step("open", "http://"+b.site.host+"/")
	if seen := step("snapshot", "-i"); seen.done && !strings.Contains(seen.stdout, "Send "+b.site.mark) {
		return fmt.Errorf("the snapshot lacks the page's button %q: %s", "Send "+b.site.mark, quote(seen.stdout))
	}
	filled := step("fill", "#text", text).done
	step("click", "#send")
	waited := step("wait", "#done").done
	shot := step("screenshot")
	if failed == nil {
		failed = b.distrust(ctx, session, tool)
	}
	step("close")
	if failed != nil {
		return failed
	}
	select {
	case got := <-b.site.told:
		if filled && got != text {
			return fmt.Errorf("fill typed %q, and the page received %s", text, quote(got))
		}
	default:
		if waited {
			return errors.New("click succeeded, and the page received no click")
		}
	}
	if shot.done && shot.image == nil {
		b.unchecked("the picture that screenshot makes: the image's policy doesn't return it")
	} else if shot.done {
		return checkPicture(shot.image)
	}
	return nil
}

// distrust opens a page with a self-signed certificate, which the browser must refuse. It is the first use of NSS.
func (b *box) distrust(ctx context.Context, session *mcp.ClientSession, tool string) error {
	address := "https://" + b.site.host + "/"
	if _, refused := b.site.policy.CheckURL(address); refused != nil || !slices.Contains(b.site.policy.Commands, "open") {
		return nil
	}
	a, err := call(ctx, session, tool, []string{"open", address})
	switch {
	case err != nil:
		return fmt.Errorf("open %s: %s", address, quote(err.Error()))
	case a.code == 0:
		return fmt.Errorf("open %s succeeded, although its certificate is self-signed", address)
	case !strings.Contains(a.stderr, "site.tls"): // docs/mcp.md
		return fmt.Errorf("open %s has exit code %d for another reason than its self-signed certificate: %s", address, a.code, quote(a.stderr))
	}
	return nil
}

// maxPixels limits a picture: a small file may decompress to a huge one.
const maxPixels = 16 << 20

// checkPicture returns an error for an invalid picture, or one of a single colour.
func checkPicture(data []byte) error {
	config, err := png.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("the screenshot is not a PNG: %w", err)
	}
	if config.Width*config.Height > maxPixels {
		return fmt.Errorf("the screenshot has %d x %d pixels, more than %d in all", config.Width, config.Height, maxPixels)
	}
	picture, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("the screenshot is not a PNG: %w", err)
	}
	r := picture.Bounds()
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			if picture.At(x, y) != picture.At(r.Min.X, r.Min.Y) {
				return nil
			}
		}
	}
	return errors.New("the screenshot of a page with text is blank")
}
