//go:build race

package store

// raceEnabled: the race detector makes everything, and Pebble most, much slower.
const raceEnabled = true
