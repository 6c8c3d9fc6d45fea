package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// EnvPrefix starts every environment variable that sets a key: the key in
// upper case with dots as underscores, so batch.max_rows is
// CBREPL_BATCH_MAX_ROWS. A list's entries are addressed by content:
// CBREPL_SOURCE_SEGMENTS_0_DSN.
const EnvPrefix = "CBREPL_"

// Problems is everything that is wrong with a configuration.
type Problems struct {
	// File is where it was read from.
	File string
	List []string
}

// Error lists the problems, one a line when there are several.
func (p *Problems) Error() string {
	if len(p.List) == 1 {
		return fmt.Sprintf("configuration %s: %s", p.File, p.List[0])
	}
	return fmt.Sprintf("configuration %s has %d problems:\n  - %s", p.File, len(p.List), strings.Join(p.List, "\n  - "))
}

// Sources says where values come from; later ones win: defaults, file,
// environment, flags.
type Sources struct {
	// File is a YAML file. Required.
	File string
	// Env is the process environment, as os.Environ gives it.
	Env []string
	// Flags maps a key to the flag that sets it. Only flags that were given count.
	Flags map[string]*pflag.Flag
}

// Load reads, decodes and validates. The error is a *Problems, or says why the
// file could not be read.
func Load(s Sources) (*Config, error) {
	if s.File == "" {
		return nil, errors.New("no configuration file given: use -c FILE; `cbrepl config example` prints one to start from")
	}
	f, err := os.Open(s.File)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w; `cbrepl config example` prints a file to start from", err)
	}
	defer f.Close()
	v := viper.NewWithOptions()
	v.SetConfigType("yaml")
	for k, val := range defaults() {
		v.SetDefault(k, val)
	}
	if err := v.ReadConfig(f); err != nil {
		return nil, &Problems{File: s.File, List: []string{"not valid YAML: " + yamlReason(err)}}
	}
	p := &Problems{File: s.File}
	applyEnv(v, s.Env, p)
	for key, fl := range s.Flags {
		if fl.Changed {
			v.Set(key, fl.Value.String())
		}
	}
	c := decode(v, p)
	if c != nil {
		c.fill()
		p.List = append(p.List, c.problems()...)
	}
	if len(p.List) > 0 {
		return nil, p
	}
	if c.Spool.Dir, err = filepath.Abs(c.Spool.Dir); err != nil {
		return nil, fmt.Errorf("spool.dir: %w", err)
	}
	return c, nil
}

// yamlReason keeps the line number and kind of a YAML error and drops the text
// of the file, which may hold a password.
func yamlReason(err error) string {
	msg := err.Error()
	i := strings.Index(msg, "line ")
	if i < 0 {
		return "the file cannot be parsed"
	}
	msg = msg[i:]
	if j := strings.IndexAny(msg, "\"'`\n"); j >= 0 {
		msg = strings.TrimRight(msg[:j], " :") + " (text left out)"
	}
	return msg
}

// applyEnv overlays the environment. A variable that begins with a known
// section but names no key is a problem; other CBREPL_ variables belong to
// somebody else.
func applyEnv(v *viper.Viper, env []string, p *Problems) {
	scalars := map[string]string{}
	sections := map[string]bool{}
	for _, k := range knownKeys() {
		first, _, _ := strings.Cut(k, ".")
		sections[envName(first)] = true
		if !strings.Contains(k, "[]") {
			scalars[envName(k)] = k
		}
	}
	for _, kv := range env {
		name, val, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, EnvPrefix) {
			continue
		}
		if key, ok := scalars[name]; ok {
			v.Set(key, val)
			continue
		}
		if list, content, ok := envListEntry(name); ok {
			setContentDSN(v, list, content, val)
			continue
		}
		for s := range sections {
			if name == s || strings.HasPrefix(name, s+"_") {
				var known []string
				for n := range scalars {
					known = append(known, n)
				}
				p.List = append(p.List, fmt.Sprintf("environment variable %s sets no key%s", name, didYouMean(name, known)))
				break
			}
		}
	}
}

func envName(key string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

func envListEntry(name string) (list string, content int, ok bool) {
	for _, l := range []string{"source.segments", "target.shards"} {
		rest, found := strings.CutPrefix(name, envName(l)+"_")
		if !found {
			continue
		}
		num, found := strings.CutSuffix(rest, "_DSN")
		if !found {
			continue
		}
		if n, err := strconv.ParseUint(num, 10, 15); err == nil {
			return l, int(n), true
		}
	}
	return "", 0, false
}

// setContentDSN replaces or adds the entry of one content.
func setContentDSN(v *viper.Viper, list string, content int, dsn string) {
	entries, _ := v.Get(list).([]any)
	entries = slices.Clone(entries)
	for i, e := range entries {
		if m, ok := e.(map[string]any); ok && fmt.Sprint(m["content"]) == strconv.Itoa(content) {
			entries[i] = map[string]any{"content": content, "dsn": dsn}
			v.Set(list, entries)
			return
		}
	}
	v.Set(list, append(entries, map[string]any{"content": content, "dsn": dsn}))
}

// decode turns settings into a Config and reports unknown keys and values of
// the wrong type. Values are never part of a report.
func decode(v *viper.Viper, p *Problems) *Config {
	c := &Config{}
	md := &mapstructure.Metadata{}
	dec, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		Result:     c,
		Metadata:   md,
		DecodeHook: decodeScalar,
	})
	if err != nil {
		panic(err) // the Config type is wrong, not the input
	}
	err = dec.Decode(v.AllSettings())
	known := knownKeys()
	for _, k := range md.Unused {
		p.List = append(p.List, fmt.Sprintf("unknown key %s%s", k, didYouMean(plain(k), known)))
	}
	if err != nil {
		p.List = append(p.List, typeProblems(err)...)
		return nil
	}
	return c
}

// badValue is a value of the wrong form.
type badValue struct{ want string }

func (b *badValue) Error() string { return "want " + b.want }

// decodeScalar converts words to the types of Config. Numbers where a duration
// or a word is wanted are refused: a bare 5 has no unit.
func decodeScalar(from, to reflect.Type, data any) (any, error) {
	s, isString := data.(string)
	switch to {
	case reflect.TypeFor[Secret]():
		if !isString {
			return nil, &badValue{"a connection string"}
		}
		return NewSecret(s), nil
	case reflect.TypeFor[time.Duration]():
		d, err := time.ParseDuration(s)
		if !isString || err != nil {
			return nil, &badValue{"a duration with a unit, such as 500ms or 2s"}
		}
		return d, nil
	case reflect.TypeFor[Bytes]():
		if n, ok := data.(int); ok {
			s = strconv.Itoa(n)
		}
		b, err := ParseBytes(s)
		if err != nil {
			return nil, &badValue{"a size, such as 64MiB or 8GB"}
		}
		return b, nil
	}
	switch to.Kind() {
	case reflect.Bool:
		if isString {
			b, err := strconv.ParseBool(s)
			if err != nil {
				return nil, &badValue{"true or false"}
			}
			return b, nil
		}
		if from.Kind() != reflect.Bool {
			return nil, &badValue{"true or false"}
		}
	case reflect.Int, reflect.Int16, reflect.Int64:
		if isString {
			n, err := strconv.ParseInt(s, 10, to.Bits())
			if err != nil {
				return nil, &badValue{"a whole number"}
			}
			return n, nil
		}
		n, ok := data.(int)
		if !ok || reflect.Zero(to).OverflowInt(int64(n)) {
			return nil, &badValue{"a whole number"}
		}
	case reflect.String:
		if !isString {
			return nil, &badValue{"text (put the value in quotes)"}
		}
	case reflect.Slice:
		if from.Kind() != reflect.Slice {
			return nil, &badValue{"a list"}
		}
	case reflect.Struct:
		if from.Kind() != reflect.Map && from != to {
			return nil, &badValue{"a section with keys of its own"}
		}
	}
	return data, nil
}

// typeProblems flattens a decode error into "key: want ..." lines.
func typeProblems(err error) []string {
	var out []string
	var walk func(error)
	walk = func(err error) {
		if m, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range m.Unwrap() {
				walk(e)
			}
			return
		}
		var de *mapstructure.DecodeError
		var bv *badValue
		switch {
		case errors.As(err, &de) && errors.As(err, &bv):
			out = append(out, de.Name()+": "+bv.Error())
		case errors.As(err, &de):
			out = append(out, de.Name()+": the value has the wrong type")
		default:
			out = append(out, "a value has the wrong type")
		}
	}
	walk(err)
	return out
}

// Keys lists every key, lists as name[].
func Keys() []string { return knownKeys() }

func knownKeys() []string {
	var out []string
	var walk func(prefix string, t reflect.Type)
	walk = func(prefix string, t reflect.Type) {
		for i := range t.NumField() {
			f := t.Field(i)
			name := prefix + f.Tag.Get("mapstructure")
			ft := f.Type
			switch {
			case ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct:
				walk(name+"[].", ft.Elem())
			case ft.Kind() == reflect.Slice:
				out = append(out, name+"[]")
			case ft.Kind() == reflect.Struct && ft != reflect.TypeFor[Secret]():
				walk(name+".", ft)
			default:
				out = append(out, name)
			}
		}
	}
	walk("", reflect.TypeFor[Config]())
	return out
}

// plain replaces indexes: a[3].b is a[].b.
func plain(key string) string {
	var b strings.Builder
	skip := false
	for _, r := range key {
		switch r {
		case '[':
			skip = true
			b.WriteString("[]")
		case ']':
			skip = false
		default:
			if !skip {
				b.WriteRune(r)
			}
		}
	}
	return b.String()
}

// didYouMean names the nearest known key when it is near enough to help. A key
// in the wrong section is found by its last word.
func didYouMean(key string, known []string) string {
	best, dist := "", len(key)/2+1
	for _, k := range known {
		if d := distance(key, k); d < dist || d == dist && k < best {
			best, dist = k, d
		}
	}
	if last := key[strings.LastIndexByte(key, '.')+1:]; dist > 3 {
		for _, k := range known {
			if k[strings.LastIndexByte(k, '.')+1:] == last {
				best = k
				break
			}
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + strings.ReplaceAll(best, "[]", "[N]") + "?"
}

// distance is the Levenshtein distance.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		prev := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := prev
			if a[i-1] != b[j-1] {
				cost++
			}
			prev = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
