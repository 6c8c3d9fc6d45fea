package config

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The files that the page about sources shows load as they stand, once the
// sections that it leaves out are there.
func TestSourcePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/source.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) != 2 {
		t.Fatalf("%d examples", len(blocks))
	}
	rest := minimal[strings.Index(minimal, "target:"):]
	for i, b := range blocks {
		c, err := Load(Sources{File: write(t, "subscription: s\n"+string(b[1])+rest)})
		if err != nil {
			t.Errorf("%s\n%v", b[1], err)
			continue
		}
		if c.Source.Coordinator.DSN.Empty() || len(c.Source.Segments) != 0 || len(c.Source.Addresses) != 2*i {
			t.Errorf("example %d: %+v", i, c.Source)
		}
	}
}
