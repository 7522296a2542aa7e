package egress

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/server/policy"
)

// bypass takes away Chromium's own rule that loopback needs no proxy.
const bypass = "<-loopback>"

// Flags gives the command line of a Chromium whose traffic all goes through
// the policy's proxy, one flag an element.
func Flags(p *policy.Policy) []string {
	return append([]string{
		"--proxy-server=http://" + p.Egress.Proxy,
		"--proxy-bypass-list=" + bypass,
		// The proxy resolves; whatever else asks for a name gets none.
		"--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE " + proxyHost(p),
		"--webrtc-ip-handling-policy=disable_non_proxied_udp",
		"--disable-features=" + strings.Join(features, ","),
		"--disable-blink-features=" + strings.Join(interfaces, ","),
		"--deny-permission-prompts",
	}, quiet...)
}

// features make requests of their own, some of them by multicast.
var features = []string{
	"AutofillServerCommunication", "DialMediaRouteProvider", "MediaRouter", "NetworkTimeServiceQuerying",
	"OptimizationHints", "Translate", "WebTransport",
	// These ask by a window over the tab, which takes the agent's clicks; no managed policy keeps them off.
	"FedCm", "WebIdentityDigitalCredentials", "WebPayments",
}

// interfaces would ask by a window over the tab or take its clicks; a page
// finds them missing. --deny-permission-prompts refuses what is a permission.
var interfaces = []string{"DocumentPictureInPictureAPI", "EyeDropperAPI", "NavigatorContentUtils", "WebOTP"}

// quiet keeps Chromium from what no page asked for.
var quiet = strings.Fields(`--disable-quic --disable-background-networking --disable-breakpad --disable-component-update
	--disable-default-apps --disable-domain-reliability --disable-extensions --disable-field-trial-config
	--disable-search-engine-choice-screen --disable-sync --metrics-recording-only --no-default-browser-check
	--no-first-run --no-pings`)

func proxyHost(p *policy.Policy) string {
	host := p.Egress.Proxy[:strings.LastIndexByte(p.Egress.Proxy, ':')]
	return strings.Trim(host, "[]")
}

// Managed gives Chromium's managed policy for the policy file, as JSON: what
// Flags does and what no flag can.
func Managed(p *policy.Policy) ([]byte, error) {
	m := maps.Clone(fixed)
	for _, name := range off {
		m[name] = false
	}
	for _, name := range denied {
		m[name] = 2 // sites may not even ask
	}
	m["PrintingEnabled"] = slices.Contains(p.Commands, "pdf") // nothing prints but that
	m["ProxySettings"] = map[string]string{"ProxyMode": "fixed_servers", "ProxyServer": "http://" + p.Egress.Proxy, "ProxyBypassList": bypass}
	m["URLBlocklist"], m["URLAllowlist"] = urlLists(p)
	b, err := json.MarshalIndent(m, "", "  ") // its keys are sorted
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// urlLists returns what may not be opened, which is all, and the exceptions.
// Whatever scheme Chromium doesn't know it would hand to a program of the
// desktop, or ask whether to: an agent can't see that question, which takes
// its clicks. Chromium's own pages are not in "*", so they are named.
func urlLists(p *policy.Policy) (block, allow []string) {
	block = []string{"*", "chrome://*", "chrome-untrusted://*", "devtools://*", "view-source:*"}
	// What a page makes of its own, and parts of Chromium's own window, without
	// which a tab never gets ready.
	allow = []string{"about:*", "blob:*", "data:*", "chrome://top-chrome"}
	for _, scheme := range p.Open.AllowSchemes {
		for _, h := range p.Open.AllowHosts {
			if below, ok := strings.CutPrefix(h, "*."); ok {
				allow = append(allow, scheme+"://"+below) // Chromium's form admits the name itself, too; the proxy doesn't
			} else if h == policy.AnyHost {
				allow = append(allow, scheme+"://*")
			} else {
				allow = append(allow, scheme+"://."+h) // the dot: not what is below it
			}
		}
	}
	return block, allow
}

// off, denied and fixed are the settings that are the same for every policy
// file. They leave out DeveloperToolsAvailability, RemoteDebuggingAllowed and
// IncognitoModeAvailability: agent-browser and the sessions' own contexts need
// their defaults.
var (
	off = strings.Fields(`AllowFileSelectionDialogs AlternateErrorPagesEnabled AudioCaptureAllowed AutofillAddressEnabled
		AutofillCreditCardEnabled BackgroundModeEnabled BrowserNetworkTimeQueriesEnabled BuiltInAIAPIsEnabled
		BuiltInDnsClientEnabled CommandLineFlagSecurityWarningsEnabled ComponentUpdatesEnabled DNSInterceptionChecksEnabled DefaultBrowserSettingEnabled
		DomainReliabilityAllowed EnableMediaRouter FeedbackSurveysEnabled MetricsReportingEnabled
		PasswordLeakDetectionEnabled PasswordManagerEnabled PaymentMethodQueryEnabled
		PromotionsEnabled QuicAllowed ScreenCaptureAllowed SearchSuggestEnabled SpellCheckServiceEnabled
		TranslateEnabled TranslatorAPIAllowed UrlKeyedAnonymizedDataCollectionEnabled UserFeedbackAllowed
		VideoCaptureAllowed`)

	denied = strings.Fields(`DefaultClipboardSetting DefaultDirectSocketsSetting
		DefaultFileSystemReadGuardSetting DefaultFileSystemWriteGuardSetting DefaultGeolocationSetting DefaultIdleDetectionSetting
		DefaultLocalFontsSetting DefaultNotificationsSetting DefaultSensorsSetting DefaultSerialGuardSetting
		DefaultWebBluetoothGuardSetting DefaultWebHidGuardSetting DefaultWebUsbGuardSetting DefaultWindowManagementSetting`)

	fixed = map[string]any{
		// None: a site that asks for a name and a password by HTTP is shown as it answers, with status 401. Chromium's own
		// dialog would lie over the tab.
		"AuthSchemes":   "",
		"BrowserSignin": 0, // off
		// A name server that cannot be reached, and no other: behind the proxy
		// Chromium needs none, but WebRTC would still ask for the names of TURN
		// servers, and a name alone can carry data out.
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
