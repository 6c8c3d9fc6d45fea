package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"cbrepl/dtx"
)

// Playground is a source and a target in a directory of their own whose servers
// outlive the process that started them.
type Playground struct {
	Source *Source
	Target *TargetCluster
	lab    *Lab
	state  playState
}

// playState is the content of the state file.
type playState struct {
	Version int        `json:"version"` // 1
	Started time.Time  `json:"started"`
	Source  []playNode `json:"source"` // the coordinator first
	Target  []playNode `json:"target"`
}

type playNode struct {
	Name string `json:"name"`
	Port int    `json:"port"`
}

const (
	stateFile  = "lab.json"
	configFile = "subscription.yaml"
	spoolDir   = "spool"
)

// DefaultPlayDir is where a playground is when no directory is named.
func DefaultPlayDir() string {
	return filepath.Join(tempBase(), "cbrepl-playground-"+strconv.Itoa(os.Geteuid()))
}

// Up starts a playground in dir, which must be empty or not exist, with the
// workload's tables, and writes a subscription file for it.
func Up(ctx context.Context, dir string, o Options, sourceSegments, targetSegments int) (*Playground, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, opErr("start playground", err)
	}
	if old, err := os.ReadDir(dir); err == nil && len(old) > 0 {
		hint := "Name another directory"
		if _, err := os.Stat(filepath.Join(dir, stateFile)); err == nil {
			hint = "A playground is there already: cbrepl lab status, cbrepl lab down"
		}
		return nil, &dtx.Error{Op: "start playground", Msg: dir + " is not empty", Hint: hint, Class: dtx.ClassStop}
	}
	o.FirstGXID = playGXID()
	l, err := newLab(ctx, o)
	if err != nil {
		return nil, err
	}
	l.detach = true
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, opErr("start playground", err)
	}
	l.dir = dir
	p, err := l.up(ctx, sourceSegments, targetSegments)
	if err != nil {
		return nil, errors.Join(err, l.Close(context.WithoutCancel(ctx)))
	}
	return p, nil
}

// playGXID starts a process's distributed transaction ids above those of every
// process before it.
func playGXID() dtx.GXID { return dtx.GXID(time.Now().UnixMicro()) }

func (l *Lab) up(ctx context.Context, sourceSegments, targetSegments int) (*Playground, error) {
	if err := l.handOver(); err != nil {
		return nil, err
	}
	p := &Playground{lab: l, state: playState{Version: 1, Started: l.started.UTC().Truncate(time.Second)}}
	var err error
	if p.Source, err = l.StartSource(ctx, sourceSegments); err != nil {
		return nil, err
	}
	if p.Target, err = l.StartTarget(ctx, targetSegments); err != nil {
		return nil, err
	}
	if err := errors.Join(p.Source.CreateWorkloadTables(ctx), p.Target.CreateWorkloadTables(ctx)); err != nil {
		return nil, err
	}
	if err := removeAll(filepath.Join(l.dir, "template.tar")); err != nil { // no server is added later
		return nil, opErr("start playground", err)
	}
	for _, n := range p.Source.Nodes() {
		p.state.Source = append(p.state.Source, playNode{n.name, n.port})
	}
	for _, n := range p.Target.Nodes() {
		p.state.Target = append(p.state.Target, playNode{n.name, n.port})
	}
	sub, err := NewSubscription("lab", l.dir, p.Source, p.Target.DSNs())
	if err != nil {
		return nil, err
	}
	sub.Set("spool.dir", filepath.Join(l.dir, spoolDir))
	sub.Set("spool.max_bytes", "1GiB")
	if err := sub.Write(p.ConfigFile()); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(p.state, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(l.dir, stateFile), append(b, '\n'), 0o644)
	}
	return p, opErr("write playground state", err)
}

// ConfigFile is the subscription file that Up wrote.
func (p *Playground) ConfigFile() string { return filepath.Join(p.lab.dir, configFile) }

// Dir is the playground's directory.
func (p *Playground) Dir() string { return p.lab.dir }

// OpenPlayground finds the playground in dir. Its servers may run or not.
func OpenPlayground(dir string, o Options) (*Playground, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, opErr("open playground", err)
	}
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, &dtx.Error{Op: "open playground", Err: err, Hint: "There is none in this directory: cbrepl lab up starts one", Class: dtx.ClassStop}
	}
	p := &Playground{}
	if err := json.Unmarshal(b, &p.state); err != nil {
		return nil, opErr("open playground", fmt.Errorf("read %s: %w", stateFile, err))
	}
	if p.state.Version != 1 || len(p.state.Source) < 2 || len(p.state.Target) < 2 {
		return nil, opErr("open playground", fmt.Errorf("%s is not one of this version", stateFile))
	}
	o.FirstGXID = playGXID()
	o.EnsureDefaults()
	p.lab = &Lab{opts: o, dir: dir, detach: true, started: p.state.Started}
	p.Source = newSource(p.lab.attach(p.state.Source), o)
	p.Target = &TargetCluster{nodes: p.lab.attach(p.state.Target)}
	return p, nil
}

// attach describes the servers of a state file, which another process started.
func (l *Lab) attach(list []playNode) *nodes {
	c := l.newNodes(len(list)-1, l.opts)
	for i, n := range list {
		s := &Server{lab: l, name: n.Name, dir: filepath.Join(l.dir, filepath.Base(n.Name)), port: n.Port}
		if pid := readPid(s.dataDir()); pid > 0 && runsIn(pid, s.dataDir()) {
			s.proc = &process{pid: pid}
		}
		if i == 0 {
			c.coordinator = s
		} else {
			c.segments[i-1] = s
		}
	}
	return c
}

// Nodes lists all servers, the source's first.
func (p *Playground) Nodes() []*Server { return append(p.Source.Nodes(), p.Target.Nodes()...) }

// Started is when Up ran.
func (p *Playground) Started() time.Time { return p.state.Started }

// Detach closes this process's sessions; the servers stay.
func (p *Playground) Detach() {
	p.Source.closePools()
	p.Target.closePools()
}

// Down stops the servers and removes what Up and the subscription's spool have
// put into the directory, and the directory if nothing else is in it.
func (p *Playground) Down(ctx context.Context) error {
	p.Detach()
	if err := all(p.Nodes(), func(s *Server) error { return s.kill(ctx) }); err != nil {
		return opErr("stop playground", err)
	}
	names := []string{spoolDir, configFile, stateFile} // the state last
	for _, s := range p.Nodes() {
		names = append([]string{filepath.Base(s.dir)}, names...)
	}
	for _, n := range names {
		if err := removeAll(filepath.Join(p.lab.dir, n)); err != nil {
			return opErr("stop playground", err)
		}
	}
	if left, err := os.ReadDir(p.lab.dir); err == nil && len(left) > 0 {
		return &dtx.Error{Op: "stop playground", Msg: "the servers are gone, but " + p.lab.dir + " holds other files and stays", Class: dtx.ClassStop}
	}
	return opErr("stop playground", os.Remove(p.lab.dir))
}
