package config

import _ "embed"

// Example is a commented subscription file that validates as it stands.
//
//go:embed example.yaml
var Example string
