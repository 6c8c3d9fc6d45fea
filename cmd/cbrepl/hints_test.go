package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"cbrepl/subscription/config"
)

// literal is a string in the module's code.
type literal struct {
	at   token.Position
	text string
}

// sources parses the module's code without tests, under ../.. .
func sources(t *testing.T, visit func(fset *token.FileSet, path string, f *ast.File)) {
	t.Helper()
	root := filepath.Join("..", "..")
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if name := d.Name(); strings.HasPrefix(name, ".") && name != ".." || name == "testdata" || name == "integration" {
				return filepath.SkipDir
			}
			return nil
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		visit(fset, filepath.ToSlash(rel), f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// literals returns every string of the module's code, concatenations as one.
func literals(t *testing.T) []literal {
	t.Helper()
	var out []literal
	sources(t, func(fset *token.FileSet, _ string, f *ast.File) {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ImportSpec:
				return false
			case ast.Expr:
				if text, ok := constantText(n); ok {
					out = append(out, literal{fset.Position(n.Pos()), text})
					return false
				}
			}
			return true
		})
	})
	return out
}

// constantText is the text of a string or of strings joined by +; what is not
// constant in them is "%s".
func constantText(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			s, err := strconv.Unquote(e.Value)
			return s, err == nil
		}
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		l, lok := constantText(e.X)
		r, rok := constantText(e.Y)
		if !lok {
			l = "%s"
		}
		if !rok {
			r = "%s"
		}
		return l + r, lok || rok
	}
	return "", false
}

var (
	inBackquotes = regexp.MustCompile("`cbrepl ([^`]*)`")
	anyCommand   = regexp.MustCompile(`\bcbrepl ((?:[a-z]+ ?)+)`)
	sectionKey   = regexp.MustCompile(`(^|[^A-Za-z0-9_./"$])((?:subscription|source|target|tables|apply|batch|spool|http|log)\.[a-z_]+)\b`)
	bareKey      = regexp.MustCompile(`(?i)\b(?:set|with|under|start with) ([a-z]+_[a-z_]+): `)
)

// checkCommands returns what text names that the command tree does not have.
// Within backquotes everything after cbrepl must be a command; elsewhere only what
// begins with one.
func checkCommands(root *cobra.Command, text string) []string {
	var bad []string
	for _, m := range inBackquotes.FindAllStringSubmatch(text, -1) {
		bad = append(bad, checkCommand(root, strings.Fields(m[1]), true)...)
	}
	for _, m := range anyCommand.FindAllStringSubmatch(text, -1) {
		bad = append(bad, checkCommand(root, strings.Fields(m[1]), false)...)
	}
	return bad
}

func checkCommand(root *cobra.Command, words []string, strict bool) []string {
	at := root
	for i, w := range words {
		if strings.HasPrefix(w, "-") {
			name := strings.TrimLeft(w, "-")
			at.InitDefaultHelpFlag()
			if len(name) > 1 && at.Flags().Lookup(name) == nil || len(name) == 1 && at.Flags().ShorthandLookup(name) == nil {
				return []string{"cbrepl " + strings.Join(words[:i+1], " ")}
			}
			continue
		}
		next := slices.IndexFunc(at.Commands(), func(c *cobra.Command) bool { return c.Name() == w })
		if next >= 0 {
			at = at.Commands()[next]
		} else if at == root && strict || at.HasSubCommands() && at != root && !strings.Contains(w, "%") {
			return []string{"cbrepl " + strings.Join(words[:i+1], " ")}
		} else if at == root {
			return nil // prose
		}
	}
	return nil
}

// checkKeys returns the configuration keys in text that do not exist.
func checkKeys(text string) []string {
	known := map[string]bool{}
	last := map[string]bool{}
	for _, k := range config.Keys() {
		k = strings.ReplaceAll(k, "[]", "")
		last[k[strings.LastIndexByte(k, '.')+1:]] = true
		for ; k != ""; k = k[:max(0, strings.LastIndexByte(k, '.'))] {
			known[k] = true
		}
	}
	var bad []string
	for _, m := range sectionKey.FindAllStringSubmatch(text, -1) {
		if !known[m[2]] {
			bad = append(bad, m[2])
		}
	}
	for _, m := range bareKey.FindAllStringSubmatch(text, -1) {
		if !last[m[1]] {
			bad = append(bad, m[1])
		}
	}
	return bad
}

// noCommand are ways to name something that a person cannot do.
var noCommand = regexp.MustCompile(`(?i)\b(skip (this|that|the) transaction|(then|and) resume\b|resume the subscription)`)

// Whatever a message tells a person to run or to set exists.
func TestHintsNameWhatExists(t *testing.T) {
	root := newRootCmd()
	checked := 0
	for _, l := range literals(t) {
		if !strings.Contains(l.text, " ") || strings.HasPrefix(filepath.ToSlash(l.at.Filename), "../../faultinject/") {
			continue // a name, no sentence
		}
		for _, c := range checkCommands(root, l.text) {
			t.Errorf("%s: there is no command %q: %q", l.at, c, l.text)
		}
		for _, k := range checkKeys(l.text) {
			t.Errorf("%s: there is no key %q: %q", l.at, k, l.text)
		}
		if m := noCommand.FindString(l.text); m != "" {
			t.Errorf("%s: no command does that (%q): %q", l.at, m, l.text)
		}
		if strings.Contains(l.text, "`cbrepl ") {
			checked++
		}
	}
	if checked < 5 {
		t.Errorf("only %d strings name a command: are they still found?", checked)
	}
}

func TestHintChecks(t *testing.T) {
	root := newRootCmd()
	for text, bad := range map[string]bool{
		"Run `cbrepl target prepare -c FILE`, which creates it":   false,
		"Run `cbrepl target repair -c FILE`":                      true,
		"Run `cbrepl skip 17`":                                    true,
		"Run `cbrepl status --adress X`":                          true,
		"make the slots again (cbrepl slots remake)":              true,
		"the slot must exist on every node (cbrepl slots create)": false,
		"what cbrepl has not read":                                false,
	} {
		if got := checkCommands(root, text); (len(got) > 0) != bad {
			t.Errorf("%s: %q", text, got)
		}
	}
	for text, bad := range map[string]bool{
		"or lower apply.window_bytes":   true,
		"or lower batch.max_bytes":      false,
		"set on_conflict: log":          false,
		"set on_conflicts: log":         true,
		"table cbrepl.subscription":     false,
		"list it under source.segments": false,
	} {
		if got := checkKeys(text); (len(got) > 0) != bad {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// Log records take their keys from package logkey, so that one fact has one
// spelling.
func TestLogKeys(t *testing.T) {
	methods := map[string]int{"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "Log": 3}
	attrs := map[string]bool{"String": true, "Int": true, "Int64": true, "Uint64": true, "Bool": true, "Any": true, "Duration": true, "Time": true}
	sources(t, func(fset *token.FileSet, path string, f *ast.File) {
		if strings.HasPrefix(path, "lab/") || strings.HasPrefix(path, "demo/") {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			var keys []ast.Expr
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "slog" && attrs[sel.Sel.Name] {
				keys = call.Args[:1]
			} else if skip, ok := methods[sel.Sel.Name]; ok && isLogger(sel.X) && len(call.Args) > skip {
				for i := skip; i < len(call.Args); i += 2 {
					if _, isCall := call.Args[i].(*ast.CallExpr); isCall {
						i-- // an slog.Attr is one argument
						continue
					}
					keys = append(keys, call.Args[i])
				}
			}
			for _, k := range keys {
				if lit, ok := k.(*ast.BasicLit); ok {
					t.Errorf("%s: log key %s is written out: use a constant of package logkey", fset.Position(lit.Pos()), lit.Value)
				}
			}
			return true
		})
	})
}

// isLogger reports whether an expression is called like a logger.
func isLogger(e ast.Expr) bool {
	name := ""
	switch e := e.(type) {
	case *ast.Ident:
		name = e.Name
	case *ast.SelectorExpr:
		name = e.Sel.Name
	}
	return strings.EqualFold(name, "log") || strings.EqualFold(name, "logger")
}
