// Package source finds and checks the nodes of a source cluster: discovery,
// slots (all or nothing), preflight facts, published tables and their policies.
// It never streams.
package source
