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
	{Rule: Rule{
		ID: "layout", Title: "A layout holds the image and nothing else", Severity: Error,
		Why: "What no digest reaches can be anything, and goes wherever the layout is copied: programs act on keys of index.json.",
		Fix: "Write the layout again with slimctl build, or copy the image alone into a new one, for example with skopeo copy.",
	}, all: outside},
	{Rule: Rule{
		ID: "name", Title: "The image has these names where it is loaded", Severity: Info,
		Why: "docker load and ctr import give the image the names in the file, and take them from other images. No digest covers a name.",
		Fix: "Load it only if these are names that you expect.",
	}, all: names},
}

func outside(k *checker) {
	for _, what := range k.in.Outside {
		k.addFinding(Finding{Subject: what, Message: what})
	}
}

func names(k *checker) {
	for _, name := range k.in.Names {
		k.addFinding(Finding{Subject: name, Message: "loading the file gives the image the name " + cut(name)})
	}
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
