package verify

import (
	"fmt"
)

var platformRules = []rule{
	{Rule: Rule{
		ID: "platform", Title: "Every platform of the profile is there, and no other", Severity: Error,
		Why: "A tag is pulled by machines of both kinds. A platform that nobody verified is pulled like the others.",
		Fix: "Build all platforms of the profile into one index, or name those that it has with verify --platform.",
	}, all: platforms},
}

func platforms(k *checker) {
	have := map[string]int{}
	for _, img := range k.in.Images {
		p := platformOf(img)
		have[p]++
		if k.in.Expect[p] == nil {
			k.addFinding(Finding{Platform: p, Subject: p, Message: fmt.Sprintf("the image is there for %s, which the profile does not have", p)})
		}
		if have[p] == 2 {
			k.addFinding(Finding{Platform: p, Subject: p, Message: fmt.Sprintf("there are several images for %s: which one is run is up to who pulls", p)})
		}
	}
	for _, entry := range k.in.Ignored {
		k.addFinding(Finding{Subject: entry, Message: "the index has an entry that some runtimes run: " + entry})
	}
	for _, p := range sortedKeys(k.in.Expect) {
		if have[p] == 0 {
			k.addFinding(Finding{Platform: p, Subject: p, Message: fmt.Sprintf("there is no image for %s, which profile %s publishes", p, k.in.Expect[p].Profile)})
		}
	}
}
