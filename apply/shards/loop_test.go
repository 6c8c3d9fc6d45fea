package shards

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"cbrepl/faultinject"
)

// loopEnv makes the test binary a small daemon: it applies a history's batches
// until its limit or until a fault point kills it.
const loopEnv = "CBREPL_SHARDS_TEST_LOOP"

type loopJob struct {
	Seed        uint64
	Coordinator string
	Shards      []string
	Until       uint64
}

// runLoop prints "applied N" after each batch, as a daemon would report it.
func runLoop() int {
	var job loopJob
	if err := json.Unmarshal([]byte(os.Getenv(loopEnv)), &job); err != nil {
		return loopFailed(err)
	}
	if err := faultinject.Arm(os.Getenv(faultinject.EnvVar)); err != nil {
		return loopFailed(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	h := history{seed: job.Seed, shards: len(job.Shards)}
	o := testOptions(job.Coordinator, job.Shards)
	tg, err := newHistoryTarget(h, o, 0)
	if err != nil {
		return loopFailed(err)
	}
	st, err := tg.Open(ctx)
	if err != nil {
		return loopFailed(err)
	}
	for seq := st.Batch + 1; seq <= job.Until; seq++ {
		if err := applyBatch(ctx, tg, h, seq, 0); err != nil {
			return loopFailed(err)
		}
		fmt.Println("applied " + strconv.FormatUint(seq, 10))
	}
	_ = tg.Close()
	return 0
}

func loopFailed(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}
