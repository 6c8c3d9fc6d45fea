package engine

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// lanes run operations: one goroutine and one queue per segment, so that
// operations of one segment keep their order and those of different segments
// overlap. What waits is bounded in bytes.
type lanes struct {
	ctx    context.Context
	cancel context.CancelFunc
	queues []chan task
	group  sync.WaitGroup // the goroutines
	open   sync.WaitGroup // tasks not yet done
	room   *semaphore.Weighted
	limit  int64
	// every is after how long without a task alive is called for a segment.
	every time.Duration
	alive func(ctx context.Context, i int) error

	mu    sync.Mutex
	fault error // the first
}

// task is one operation. done is called exactly once, whether or not run was.
type task struct {
	size int64
	run  func(ctx context.Context) error
	done func()
}

// laneDepth bounds the operations waiting for one segment.
const laneDepth = 64

func newLanes(ctx context.Context, n int, limit int64) *lanes {
	l := &lanes{queues: make([]chan task, n), room: semaphore.NewWeighted(limit), limit: limit}
	l.ctx, l.cancel = context.WithCancel(ctx)
	return l
}

// put queues a task for segment i and blocks while too much is waiting. After a
// fault it only calls done and returns an error.
func (l *lanes) put(i int, t task) error {
	t.size = min(max(t.size, 1), l.limit)
	if err := l.room.Acquire(l.ctx, t.size); err != nil {
		t.done()
		return l.failure(err)
	}
	if l.queues[i] == nil {
		l.queues[i] = make(chan task, laneDepth)
		l.group.Add(1)
		go l.work(i)
	}
	l.open.Add(1)
	l.queues[i] <- t // the goroutine reads until the channel is closed
	return nil
}

func (l *lanes) work(i int) {
	defer l.group.Done()
	idle := time.NewTimer(l.every)
	defer idle.Stop()
	for {
		select {
		case t, ok := <-l.queues[i]:
			if !ok {
				return
			}
			if l.ctx.Err() == nil {
				if err := t.run(l.ctx); err != nil {
					l.fail(err)
				}
			}
			t.done()
			l.room.Release(t.size)
			l.open.Done()
		case <-idle.C:
			if l.ctx.Err() == nil {
				if err := l.alive(l.ctx, i); err != nil {
					l.fail(err)
				}
			}
		}
		idle.Reset(l.every)
	}
}

func (l *lanes) fail(err error) {
	l.mu.Lock()
	if l.fault == nil {
		l.fault = err
	}
	l.mu.Unlock()
	l.cancel()
}

// failure returns the first fault of a lane, else err.
func (l *lanes) failure(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault != nil {
		return l.fault
	}
	return err
}

// wait returns when every queued task is done, with the first fault.
func (l *lanes) wait() error {
	l.open.Wait()
	return l.failure(l.ctx.Err())
}

// finish ends the goroutines; with an error, without running what is queued. It
// returns the error that began it.
func (l *lanes) finish(err error) error {
	if err != nil {
		// A lane's fault cancels the context, which the caller then meets.
		err = l.failure(err)
		l.cancel()
	}
	for _, q := range l.queues {
		if q != nil {
			close(q)
		}
	}
	l.group.Wait()
	if err == nil {
		err = l.failure(l.ctx.Err())
	}
	l.cancel()
	return err
}

// shared counts the tasks that use one operation's buffers.
type shared struct {
	mu   sync.Mutex
	n    int
	free func()
}

func (s *shared) done() {
	s.mu.Lock()
	s.n--
	last := s.n == 0
	s.mu.Unlock()
	if last {
		s.free()
	}
}

// indexes returns the segments that a place stands for, as indexes.
func (t *table) indexes(place int) (from, to int) {
	if place == everywhere {
		return 0, len(t.segs)
	}
	return place, place + 1
}

// Places besides a segment's index.
const (
	everywhere = -1 // on every segment of the table
	somewhere  = -2 // on one that is not known
)
