package egress

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/server/policy"
)

// bypass removes Chromium's implicit rule that loopback bypasses the proxy.
const bypass = "<-loopback>"

// Flags returns the command-line flags of a Chromium whose whole traffic goes through the policy's proxy.
func Flags(p *policy.Policy) []string {
	return append([]string{
		"--proxy-server=http://" + p.Egress.Proxy,
		"--proxy-bypass-list=" + bypass,
		// The proxy resolves names; every other lookup fails.
		"--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE " + proxyHost(p),
		"--webrtc-ip-handling-policy=disable_non_proxied_udp",
		"--disable-features=" + strings.Join(features, ","),
		"--disable-blink-features=" + strings.Join(interfaces, ","),
		"--deny-permission-prompts",
	}, quiet...)
}

// features lists the disabled features that make requests of their own, some by multicast.
var features = []string{
	"AutofillServerCommunication", "DialMediaRouteProvider", "MediaRouter", "NetworkTimeServiceQuerying",
	"OptimizationHints", "Translate", "WebTransport",
	// These open a window over the tab, which takes the agent's clicks; no managed policy disables them.
	"FedCm", "WebIdentityDigitalCredentials", "WebPayments",
}

// interfaces lists the disabled interfaces that open a window over the tab or take its clicks; pages find them missing.
// --deny-permission-prompts covers those that are permissions.
var interfaces = []string{"DocumentPictureInPictureAPI", "EyeDropperAPI", "NavigatorContentUtils", "WebOTP"}

// quiet lists flags against traffic and windows that no page requested.
var quiet = strings.Fields(`--disable-quic --disable-background-networking --disable-breakpad --disable-component-update
	--disable-default-apps --disable-domain-reliability --disable-extensions --disable-field-trial-config
	--disable-search-engine-choice-screen --disable-sync --metrics-recording-only --no-default-browser-check
	--no-first-run --no-pings`)

func proxyHost(p *policy.Policy) string {
	host := p.Egress.Proxy[:strings.LastIndexByte(p.Egress.Proxy, ':')]
	return strings.Trim(host, "[]")
}

// Managed returns Chromium's managed policy for the policy file, as JSON. It repeats Flags and adds settings without a
// flag.
func Managed(p *policy.Policy) ([]byte, error) {
	m := maps.Clone(fixed)
	for _, name := range off {
		m[name] = false
	}
	for _, name := range denied {
		m[name] = 2 // 2: block without a prompt
	}
	m["PrintingEnabled"] = slices.Contains(p.Commands, "pdf") // only pdf prints
	m["ProxySettings"] = map[string]string{"ProxyMode": "fixed_servers", "ProxyServer": "http://" + p.Egress.Proxy, "ProxyBypassList": bypass}
	m["URLBlocklist"], m["URLAllowlist"] = urlLists(p)
	b, err := json.MarshalIndent(m, "", "  ") // its keys are sorted
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// urlLists returns the blocked URLs, which are all, and the exceptions. Chromium hands an unknown scheme to a program
// of the desktop, or asks first. An agent can't see that question, which takes its clicks. "*" doesn't cover Chromium's
// own pages, so they are listed.
func urlLists(p *policy.Policy) (block, allow []string) {
	block = []string{"*", "chrome://*", "chrome-untrusted://*", "devtools://*", "view-source:*"}
	// Content that pages create, and parts of Chromium's window, without which a tab never becomes ready.
	allow = []string{"about:*", "blob:*", "data:*", "chrome://top-chrome"}
	for _, scheme := range p.Open.AllowSchemes {
		for _, h := range p.Open.AllowHosts {
			if below, ok := strings.CutPrefix(h, "*."); ok {
				allow = append(allow, scheme+"://"+below) // Chromium's form also matches the name itself; the proxy's doesn't
			} else if h == policy.AnyHost {
				allow = append(allow, scheme+"://*")
			} else {
				allow = append(allow, scheme+"://."+h) // the dot excludes subdomains
			}
		}
	}
	return block, allow
}

// off, denied and fixed are settings that don't depend on the policy file. They leave out DeveloperToolsAvailability,
// RemoteDebuggingAllowed and IncognitoModeAvailability: agent-browser and the sessions' contexts need their defaults.
var (
	off = strings.Fields(`AllowFileSelectionDialogs AlternateErrorPagesEnabled AudioCaptureAllowed AutofillAddressEnabled
		AutofillCreditCardEnabled BackgroundModeEnabled BrowserNetworkTimeQueriesEnabled BuiltInAIAPIsEnabled
		BuiltInDnsClientEnabled CommandLineFlagSecurityWarningsEnabled ComponentUpdatesEnabled DNSInterceptionChecksEnabled DefaultBrowserSettingEnabled
		DomainReliabilityAllowed EnableMediaRouter FeedbackSurveysEnabled MetricsReportingEnabled
		PasswordLeakDetectionEnabled PasswordManagerEnabled PaymentMethodQueryEnabled
		PromotionsEnabled QuicAllowed SSLErrorOverrideAllowed ScreenCaptureAllowed SearchSuggestEnabled SpellCheckServiceEnabled
		TranslateEnabled TranslatorAPIAllowed UrlKeyedAnonymizedDataCollectionEnabled UserFeedbackAllowed
		VideoCaptureAllowed`)

	denied = strings.Fields(`DefaultClipboardSetting DefaultDirectSocketsSetting
		DefaultFileSystemReadGuardSetting DefaultFileSystemWriteGuardSetting DefaultGeolocationSetting DefaultIdleDetectionSetting
		DefaultLocalFontsSetting DefaultNotificationsSetting DefaultSensorsSetting DefaultSerialGuardSetting
		DefaultWebBluetoothGuardSetting DefaultWebHidGuardSetting DefaultWebUsbGuardSetting DefaultWindowManagementSetting`)

	fixed = map[string]any{
		// None: a site with HTTP authentication is shown with its answer, status 401. Chromium's own dialog would cover
		// the tab.
		"AuthSchemes":   "",
		"BrowserSignin": 0, // off
		// An unreachable name server, and no other. Behind the proxy Chromium needs none, but WebRTC would still look
		// up TURN servers, and a name alone can carry data out.
		"DnsOverHttpsMode":            "secure",
		"DnsOverHttpsTemplates":       "https://127.0.0.1:1/{?dns}",
		"DownloadRestrictions":        3, // no download at all
		"ExtensionInstallBlocklist":   []string{"*"},
		"NativeMessagingBlocklist":    []string{"*"},
		"NetworkPredictionOptions":    2, // never
		"SafeBrowsingProtectionLevel": 0, // off
		"SyncDisabled":                true,
		"WebRtcIPHandling":            "disable_non_proxied_udp",
	}
)
