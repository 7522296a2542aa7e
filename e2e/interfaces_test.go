package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

// interfaces are what a page of a trusted https site may ask of the browser or of the person in front of it.
var interfaces = map[string]string{
	"USB":                     `navigator.usb.requestDevice({filters: []})`,
	"Bluetooth":               `navigator.bluetooth.requestDevice({acceptAllDevices: true})`,
	"serial ports":            `navigator.serial.requestPort()`,
	"HID":                     `navigator.hid.requestDevice({filters: []})`,
	"open a file":             `showOpenFilePicker()`,
	"save a file":             `showSaveFilePicker()`,
	"open a directory":        `showDirectoryPicker()`,
	"screen":                  `navigator.mediaDevices.getDisplayMedia()`,
	"camera":                  `navigator.mediaDevices.getUserMedia({video: true})`,
	"microphone":              `navigator.mediaDevices.getUserMedia({audio: true})`,
	"clipboard, text":         `navigator.clipboard.readText()`,
	"clipboard":               `navigator.clipboard.read()`,
	"notifications":           `Notification.requestPermission()`,
	"push":                    `navigator.serviceWorker.register('/worker.js').then(() => navigator.serviceWorker.ready).then(r => r.pushManager.subscribe({userVisibleOnly: true, applicationServerKey: 'BEl62iUYgUivxIkv69yViEuiBIa-Ib9-SkvMeAtA3LFgDzkrxZJjSgSnfckjBJuBkr3qBUYIHBQFLXYp5Nksh8U'}))`,
	"payment":                 `new PaymentRequest([{supportedMethods: 'https://' + location.host + '/pay'}], {total: {label: 'x', amount: {currency: 'EUR', value: '1'}}}).show()`,
	"payment, confirmed":      `new PaymentRequest([{supportedMethods: 'secure-payment-confirmation', data: {credentialIds: [new Uint8Array(32)], challenge: new Uint8Array(32), rpId: location.hostname, instrument: {displayName: 'x', icon: '/icon.png'}, payeeOrigin: origin, timeout: 3600000}}], {total: {label: 'x', amount: {currency: 'EUR', value: '1'}}}).show()`,
	"WebAuthn, create":        `navigator.credentials.create(key({}))`,
	"WebAuthn, create, plain": `navigator.credentials.create(key({userVerification: 'discouraged', residentKey: 'discouraged'}))`,
	"WebAuthn, create, here":  `navigator.credentials.create(key({userVerification: 'discouraged', authenticatorAttachment: 'platform'}))`,
	"WebAuthn, create, there": `navigator.credentials.create(key({userVerification: 'required', authenticatorAttachment: 'cross-platform'}))`,
	"WebAuthn, get":           `navigator.credentials.get({publicKey: {challenge: new Uint8Array(32), timeout: 3600000}})`,
	"WebAuthn, get known":     `navigator.credentials.get({publicKey: {challenge: new Uint8Array(32), allowCredentials: [{type: 'public-key', id: new Uint8Array(32)}], timeout: 3600000}})`,
	"password, get":           `navigator.credentials.get({password: true, mediation: 'required'})`,
	"password, store":         `navigator.credentials.store(new PasswordCredential({id: 'x', password: 'x'}))`,
	"federated":               `navigator.credentials.get({identity: {providers: [{configURL: origin + '/fedcm.json', clientId: 'x'}]}})`,
	"digital credentials":     `navigator.credentials.get({digital: {requests: [{protocol: 'openid4vp-v1-unsigned', data: {}}]}})`,
	"one-time code":           `navigator.credentials.get({otp: {transport: ['sms']}})`,
	"speech":                  `new Promise((ok, no) => { const r = new webkitSpeechRecognition(); r.onstart = ok; r.onerror = e => no(new Error(e.error)); r.start() })`,
	"accelerometer":           `new Promise((ok, no) => { const s = new Accelerometer(); s.onactivate = ok; s.onerror = e => no(e.error); s.start() })`,
	"gyroscope":               `new Promise((ok, no) => { const s = new Gyroscope(); s.onactivate = ok; s.onerror = e => no(e.error); s.start() })`,
	"magnetometer":            `new Promise((ok, no) => { const s = new Magnetometer(); s.onactivate = ok; s.onerror = e => no(e.error); s.start() })`,
	"light":                   `new Promise((ok, no) => { const s = new AmbientLightSensor(); s.onactivate = ok; s.onerror = e => no(e.error); s.start() })`,
	"MIDI":                    `navigator.requestMIDIAccess()`,
	"MIDI, exclusive":         `navigator.requestMIDIAccess({sysex: true})`,
	"idle detection":          `IdleDetector.requestPermission()`,
	"window management":       `getScreenDetails()`,
	"local fonts":             `queryLocalFonts()`,
	"geolocation":             `new Promise((ok, no) => navigator.geolocation.getCurrentPosition(ok, no))`,
	"persistent storage":      `navigator.storage.persist()`,
	"storage of others":       `document.requestStorageAccessFor('https://other.example')`,
	"colours":                 `new EyeDropper().open()`,
	"virtual reality":         `navigator.xr.requestSession('immersive-vr')`,
	"presentation":            `new PresentationRequest('/x').start()`,
	"sharing":                 `navigator.share({title: 'x', url: '/'})`,
	"contacts":                `navigator.contacts.select(['name'])`,
	"NFC":                     `new NDEFReader().scan()`,
	"picture in picture":      `documentPictureInPicture.requestWindow()`,
	"protocol handler":        `navigator.registerProtocolHandler('web+x', '/?%s')`,
	"installation":            `navigator.install()`,
	"local network":           `fetch('http://192.168.0.1/', {targetAddressSpace: 'local'})`,
	"loopback":                `fetch('http://127.0.0.1:9222/json', {targetAddressSpace: 'loopback'})`,
	"language model":          `LanguageModel.create()`,
	"translator":              `Translator.create({sourceLanguage: 'en', targetLanguage: 'de'})`,
	"direct sockets":          `new TCPSocket('127.0.0.1', 9222).opened`,
	"a file for a field":      `document.getElementById('file').showPicker()`,
	"print":                   `print()`,
}

// harmless are the answers that give a page nothing, beside refusals.
var harmless = []string{"", "denied", "false", "null", "undefined"}

// authority is a certificate authority with one certificate, for names.
func authority(t *testing.T, names ...string) (ca []byte, certificate tls.Certificate) {
	t.Helper()
	make := func(template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if parent == nil {
			parent, parentKey = template, key
		}
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(48*time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
		if err != nil {
			t.Fatal(err)
		}
		return der, key
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "e2e"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	ca, caKey := make(root, nil, nil)
	leaf, leafKey := make(&x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, root, caKey)
	return ca, tls.Certificate{Certificate: [][]byte{leaf}, PrivateKey: leafKey}
}

// asking is a page of a site, with a frame of another one.
const asking = `<!doctype html><title>asking</title><input id="file" type="file"><button id="count" onclick="clicks++">Count</button>
<iframe src="https://other.example/frame"></iframe>
<script>
	let clicks = 0, answer;
	const key = authenticatorSelection => ({publicKey: {authenticatorSelection, rp: {name: 'x'}, user: {id: new Uint8Array(16), name: 'x', displayName: 'x'},
		challenge: new Uint8Array(32), pubKeyCredParams: [{type: 'public-key', alg: -7}], timeout: 3600000}});
</script>`

// testInterfaces: what a page asks of the browser or of a person is not there or refused at once, and an agent's clicks reach
// the page afterwards: no window lies over the tab.
func testInterfaces(t *testing.T, b *box, certificate tls.Certificate) {
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/worker.js":
			w.Header().Set("Content-Type", "text/javascript")
		case "/frame":
			_, _ = io.WriteString(w, `<!doctype html><script>let answer</script>`)
		case "/":
			_, _ = io.WriteString(w, asking)
		default:
			http.NotFound(w, r)
		}
	}))
	site.Listener.Close()
	site.Listener, site.TLS = b.w.listen(t, siteIP+":443"), &tls.Config{Certificates: []tls.Certificate{certificate}}
	site.StartTLS()
	defer site.Close()

	a := newAgent(t, b.w)
	const address = "https://site.example/"
	a.must("s", "open", address)
	tools := b.devTools()
	page := tools.attach(t, func(tab target) bool { return tab.URL == address })
	if v := page.must(t, "isSecureContext"); v != true {
		t.Fatalf("it is no secure context: %v", v)
	}
	if _, err := page.call(t.Context(), "Page.bringToFront", nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(interfaces)) {
		page.ask(t, name, interfaces[name])
	}
	frame := tools.attach(t, func(tab target) bool { return tab.URL == "https://other.example/frame" })
	frame.ask(t, "storage, in a frame", `document.requestStorageAccess()`)
	a.click("s", "#count", "a click after all that", func() error {
		if v, _ := page.must(t, "clicks").(float64); v < 1 {
			return errors.New("the page got none")
		}
		return nil
	})
	a.must("s", "close")
}

// ask does in a page what a click may do, and checks that nothing is given.
func (p *page) ask(t *testing.T, name, script string) {
	t.Helper()
	if _, err := p.call(t.Context(), "Runtime.evaluate", map[string]any{"userGesture": true, "expression": fmt.Sprintf(`
		answer = null;
		(() => {
			const say = what => answer = String(what), no = e => say('refused: ' + e.name + ': ' + e.message);
			try { Promise.resolve(%s).then(say, no) } catch (e) { no(e) }
		})()`, script)}); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var answer string
	for deadline := time.Now().Add(need.Patience); ; time.Sleep(5 * time.Millisecond) {
		if v, ok := p.must(t, "answer").(string); ok {
			answer = v
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("%s waits for somebody", name)
			return
		}
	}
	t.Logf("%s: %s", name, answer)
	what, refused := strings.CutPrefix(answer, "refused: ")
	if !refused && !slices.Contains(harmless, what) {
		t.Errorf("%s: %s", name, answer)
	}
	if regexp.MustCompile("gesture|activation|pending|focus|argument").MatchString(what) {
		t.Errorf("%s was not asked for in the right way: %s", name, answer)
	}
}
