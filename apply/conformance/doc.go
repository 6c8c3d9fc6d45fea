// Package conformance holds what every kind of target must do alike: the same
// batches, built from the bytes a source server sends, are applied to a target,
// which then must hold what a plain model of the source holds, in the right
// places, with the right state. It knows nothing of a target's SQL; a Fixture
// makes tables and looks at them.
package conformance
