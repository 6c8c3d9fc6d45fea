package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"cbrepl/lab"
)

// newLabCmd is "cbrepl lab": a source and a target cluster of local PostgreSQL
// servers to play with.
func newLabCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Start and stop a source and a target of local PostgreSQL servers to play with",
		Long: `Start and stop a source and a target of local PostgreSQL servers to play with.

The servers keep running until "cbrepl lab down". They trust every local
connection, listen on 127.0.0.1 only and keep nothing safe against a crash of
the machine.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var dir string
	cmd.PersistentFlags().StringVar(&dir, "dir", lab.DefaultPlayDir(), "directory of the servers and of what is known of them")
	cmd.AddCommand(newLabUpCmd(&dir), newLabStatusCmd(&dir), newLabLoadCmd(&dir), newLabCheckCmd(&dir), newLabDownCmd(&dir))
	return cmd
}

func newLabUpCmd(dir *string) *cobra.Command {
	var source, target int
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the servers, make tables and write a subscription file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := lab.Up(cmd.Context(), *dir, lab.Options{}, source, target)
			if err != nil {
				return err
			}
			p.Detach()
			out := cmd.OutOrStdout()
			if err := printNodes(cmd.Context(), out, p); err != nil {
				return err
			}
			flag := ""
			if *dir != lab.DefaultPlayDir() {
				flag = " --dir " + p.Dir()
			}
			_, err = fmt.Fprintf(out, `
The subscription file is %[1]s. Go on with

    cbrepl target prepare -c %[1]s
    cbrepl slots create -c %[1]s
    cbrepl run -c %[1]s
    cbrepl lab load%[2]s      # in another terminal: transactions on the source
    cbrepl lab check%[2]s     # when the load has ended: are both sides the same?
    cbrepl lab down%[2]s
`, p.ConfigFile(), flag)
			return err
		},
	}
	cmd.Flags().IntVar(&source, "source-segments", 3, "segments of the source, 1 to 64")
	cmd.Flags().IntVar(&target, "target-segments", 2, "shards of the target, 1 to 64")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		for name, n := range map[string]int{"source-segments": source, "target-segments": target} {
			if n < 1 || n > 64 {
				return &usageError{fmt.Errorf("--%s is %d: want 1 to 64", name, n)}
			}
		}
		return nil
	}
	return cmd
}

// labNode is one line of the status.
type labNode struct {
	Name    string `json:"name"`
	DSN     string `json:"dsn"`
	Running bool   `json:"running"`
	Version string `json:"version,omitempty"`
	// Slots and Prepared count replication slots and prepared transactions.
	Slots    int    `json:"slots"`
	Prepared int    `json:"prepared"`
	Error    string `json:"error,omitempty"`
}

// inspect asks every server of the playground.
func inspect(ctx context.Context, p *lab.Playground) []labNode {
	var out []labNode
	for _, s := range p.Nodes() {
		n := labNode{Name: s.Name(), DSN: s.DSN(), Running: s.Running()}
		if n.Running {
			if err := n.ask(ctx); err != nil {
				n.Error = err.Error()
			}
		}
		out = append(out, n)
	}
	return out
}

func (n *labNode) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, n.DSN)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	return c.QueryRow(ctx, `select current_setting('server_version'),
	    (select count(*) from pg_replication_slots), (select count(*) from pg_prepared_xacts)`).Scan(&n.Version, &n.Slots, &n.Prepared)
}

func printNodes(ctx context.Context, out io.Writer, p *lab.Playground) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "server\tstate\tslots\tprepared\tconnection string")
	for _, n := range inspect(ctx, p) {
		state := "stopped"
		switch {
		case n.Error != "":
			state = "does not answer"
		case n.Running:
			state = "runs " + n.Version
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", n.Name, state, n.Slots, n.Prepared, n.DSN)
	}
	return w.Flush()
}

func newLabStatusCmd(dir *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the servers and their connection strings",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := lab.OpenPlayground(*dir, lab.Options{})
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				e := json.NewEncoder(out)
				e.SetIndent("", "  ")
				return e.Encode(map[string]any{"dir": p.Dir(), "config": p.ConfigFile(), "started": p.Started(), "nodes": inspect(cmd.Context(), p)})
			}
			if err := printNodes(cmd.Context(), out, p); err != nil {
				return err
			}
			_, err = fmt.Fprintf(out, "\nstarted %s; subscription file %s\n", p.Started().Format(time.RFC3339), p.ConfigFile())
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newLabLoadCmd(dir *string) *cobra.Command {
	var length time.Duration
	var clients, accounts int
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Run distributed transactions on the source's tables",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := lab.OpenPlayground(*dir, lab.Options{})
			if err != nil {
				return err
			}
			defer p.Detach()
			r, err := p.Source.Recover(cmd.Context()) // of a load that was killed
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if r.Committed+r.RolledBack > 0 {
				_, _ = fmt.Fprintf(out, "finished what an earlier load left: %d prepared transactions committed, %d rolled back\n", r.Committed, r.RolledBack)
			}
			load := lab.NewWorkload(p.Source, 0)
			load.Accounts, load.Workers, load.FirstID = accounts, clients, time.Now().UnixMicro()
			if err := load.Fill(cmd.Context()); err != nil {
				return err
			}
			ctx, cancel := cmd.Context(), context.CancelFunc(func() {})
			if length > 0 {
				ctx, cancel = context.WithTimeout(ctx, length)
			}
			defer cancel()
			start := time.Now()
			filled, _, _ := load.Counts()
			if err := load.Run(ctx); err != nil {
				return err
			}
			took := time.Since(start)
			n, _, _ := load.Counts()
			n -= filled
			_, err = fmt.Fprintf(out, "%d distributed transactions in %s, %.0f a second\n", n, took.Round(time.Millisecond), float64(n)/took.Seconds())
			return err
		},
	}
	cmd.Flags().DurationVar(&length, "for", 10*time.Second, "how long; 0 runs until interrupted")
	cmd.Flags().IntVar(&clients, "clients", 4, "transactions at once, 1 to 64")
	cmd.Flags().IntVar(&accounts, "accounts", 1000, "rows of the table accounts")
	return cmd
}

func newLabCheckCmd(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Compare both clusters row by row and check where the target's rows are",
		Long: `Compare both clusters row by row and check where the target's rows are.

Nothing may write meanwhile, and the subscription must have caught up. The exit
code is 1 when they differ.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := lab.OpenPlayground(*dir, lab.Options{})
			if err != nil {
				return err
			}
			defer p.Detach()
			r, err := lab.Compare(cmd.Context(), p.Source, p.Target)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprint(cmd.OutOrStdout(), r); err != nil {
				return err
			}
			if !r.OK() {
				return &codedError{code: exitFault}
			}
			return nil
		},
	}
}

func newLabDownCmd(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the servers and remove their data",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := lab.OpenPlayground(*dir, lab.Options{})
			if err != nil {
				return err
			}
			if err := p.Down(cmd.Context()); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "stopped %d servers and removed %s\n", len(p.Nodes()), p.Dir())
			return err
		},
	}
}
