package shards

import (
	"os"
	"strings"
	"testing"
)

// The grants of docs/target-shards.md, with ROLE for the daemon's role.
// TestPrivileges shows that they are enough.
const (
	coordinatorGrants = `GRANT USAGE ON SCHEMA cbrepl TO ROLE;
GRANT SELECT, UPDATE ON cbrepl.subscription TO ROLE;
GRANT SELECT, INSERT ON cbrepl.stream TO ROLE;
GRANT SELECT, INSERT, DELETE ON cbrepl.replicated, cbrepl.copy TO ROLE;
GRANT SELECT, INSERT, UPDATE, DELETE ON cbrepl.dedup TO ROLE;
GRANT SELECT ON cbrepl.state_format, cbrepl.distribution_policy TO ROLE;`
	shardGrants = `GRANT USAGE ON SCHEMA cbrepl TO ROLE;
GRANT SELECT, UPDATE ON cbrepl.shard TO ROLE;
GRANT SELECT ON cbrepl.state_format TO ROLE;`
)

// The page prints what TestPrivileges has tried.
func TestDocumentedGrants(t *testing.T) {
	page, err := os.ReadFile("../../docs/target-shards.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, grants := range []string{coordinatorGrants, shardGrants} {
		if !strings.Contains(string(page), "```sql\n"+grants+"\n```") {
			t.Errorf("docs/target-shards.md does not list\n%s", grants)
		}
	}
}
