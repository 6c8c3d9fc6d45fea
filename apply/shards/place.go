package shards

import (
	"context"
	"errors"
	"time"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
)

// placed names the shard in the errors of a backend, and bounds its operations:
// a server that hangs answers no statement timeout.
type placed struct {
	apply.Backend
	shards []*node
	limit  time.Duration
}

// hangGrace is what a server gets beyond its own statement timeout.
const hangGrace = 30 * time.Second

func (p placed) name(seg dtx.Content, err error) error {
	var de *dtx.Error
	if err != nil && errors.As(err, &de) && de.Msg == "" && seg >= 0 && int(seg) < len(p.shards) {
		de.Msg = "the " + p.shards[seg].String()
	}
	return err
}

func (p placed) Copy(ctx context.Context, seg dtx.Content, op *apply.CopyOp) (apply.Inserted, error) {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	n, err := p.Backend.Copy(ctx, seg, op)
	return n, p.name(seg, err)
}

func (p placed) Delete(ctx context.Context, seg dtx.Content, op *apply.DeleteOp) (apply.Found, error) {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	f, err := p.Backend.Delete(ctx, seg, op)
	return f, p.name(seg, err)
}

func (p placed) Update(ctx context.Context, seg dtx.Content, op *apply.UpdateOp) (apply.Found, error) {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	f, err := p.Backend.Update(ctx, seg, op)
	return f, p.name(seg, err)
}

func (p placed) DeleteImages(ctx context.Context, seg dtx.Content, op *apply.ImageOp) (apply.Found, error) {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	f, err := p.Backend.DeleteImages(ctx, seg, op)
	return f, p.name(seg, err)
}

func (p placed) Truncate(ctx context.Context, seg dtx.Content, tables []*catalog.Table, restartIdentity bool) error {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	return p.name(seg, p.Backend.Truncate(ctx, seg, tables, restartIdentity))
}

func (p placed) KeepAlive(ctx context.Context, seg dtx.Content) error {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	return p.name(seg, p.Backend.KeepAlive(ctx, seg))
}
