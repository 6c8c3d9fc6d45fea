package shards

// The grants of docs/target-shards.md, with ROLE for the daemon's role. The
// text is compared with the page by TestDocumentedGrants.
const (
	coordinatorGrants = `GRANT USAGE ON SCHEMA cbrepl TO ROLE;
GRANT SELECT, UPDATE ON cbrepl.subscription TO ROLE;
GRANT SELECT, INSERT, UPDATE, DELETE ON cbrepl.stream, cbrepl.dedup TO ROLE;
GRANT SELECT ON cbrepl.state_format, cbrepl.distribution_policy TO ROLE;`
	shardGrants = `GRANT USAGE ON SCHEMA cbrepl TO ROLE;
GRANT SELECT, UPDATE ON cbrepl.shard TO ROLE;
GRANT SELECT ON cbrepl.state_format TO ROLE;`
)
