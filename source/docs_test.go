package source

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestPolicyTableInDocs: the documented table of policies is the one that cbrepl
// tells people to make.
func TestPolicyTableInDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, doc, _ := strings.Cut(string(page), "    cbrepl.distribution_policy (")
	doc, _, found := strings.Cut(doc, "\n\n")
	if !found {
		t.Fatal("docs/architecture.md shows no cbrepl.distribution_policy")
	}
	_, code, _ := strings.Cut(createPolicyTable, "CREATE TABLE cbrepl.distribution_policy (")
	squeeze := func(s string) string {
		s = regexp.MustCompile(`--.*`).ReplaceAllString(s, "")
		return strings.Join(strings.Fields(s), " ")
	}
	if doc, code = squeeze(doc), squeeze(code); doc != code {
		t.Errorf("documented: %s\nin the code: %s", doc, code)
	}
}
