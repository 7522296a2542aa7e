// Package nearest finds the valid word that is most similar to a misspelt one.
package nearest

import (
	"math"
	"strings"

	"github.com/agext/levenshtein"
)

// maxWord limits the length, in bytes, of words to compare.
const maxWord = 64

// Word returns the most similar of the valid words, or "" if none is similar.
func Word(word string, valid []string) string {
	best, least := "", math.MaxInt
	if len(word) > maxWord {
		return ""
	}
	for _, v := range valid {
		if d := levenshtein.Distance(foldWord(word), foldWord(v), nil); d < least {
			best, least = v, d
		}
	}
	if least > max(1, min(len(word), len(best))/3) {
		return ""
	}
	return best
}

// foldWord removes case and separators.
func foldWord(s string) string {
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s))
}
