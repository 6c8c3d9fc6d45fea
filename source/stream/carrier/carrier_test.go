package carrier

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"cbrepl/dtx"
	"cbrepl/internal/soak"
)

func TestCommitRecordRoundTrip(t *testing.T) {
	soak.Check(t, 100, 2000, func(t *rapid.T) {
		kind := dtx.TwoPhase
		most := 40
		if rapid.Bool().Draw(t, "one-phase") {
			kind, most = dtx.OnePhase, 1
		}
		contents := rapid.SliceOfNDistinct(rapid.Int16Range(-1, 300), 1, most, rapid.ID[int16]).Draw(t, "contents")
		want := dtx.CommitRecord{
			GXID:       dtx.GXID(rapid.Uint64Min(1).Draw(t, "gxid")),
			Kind:       kind,
			CommitTime: dtx.PGTime(rapid.Int64().Draw(t, "time")),
		}
		for _, c := range contents {
			want.Participants = append(want.Participants, dtx.Content(c))
		}
		got, mine, err := Messages{}.CommitRecord(DefaultCommitPrefix, AppendCommitRecord(nil, want))
		if err != nil || !mine {
			t.Fatalf("mine=%v: %v", mine, err)
		}
		// Whatever the order on the wire, participants come out ascending.
		slicesSort(want.Participants)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatal(d)
		}
	})
}

func slicesSort(cs []dtx.Content) {
	for i := range cs {
		for j := i; j > 0 && cs[j] < cs[j-1]; j-- {
			cs[j], cs[j-1] = cs[j-1], cs[j]
		}
	}
}

func TestBadCommitRecords(t *testing.T) {
	body := func(kind dtx.Kind, gxid dtx.GXID, cs ...dtx.Content) []byte {
		return AppendCommitRecord(nil, dtx.CommitRecord{GXID: gxid, Kind: kind, Participants: cs})
	}
	version := body('T', 1, 0, 1)
	version[0] = 2
	count := body('T', 1, 0, 1)
	binary.BigEndian.PutUint16(count[18:], 3)
	for _, c := range []struct {
		name, want string
		body       []byte
	}{
		{"empty", "empty body", nil},
		{"short", "at least 20 bytes", body('T', 1, 0)[:19]},
		{"version", "version 2", version},
		{"kind", "kind 88", body('X', 1, 0)},
		{"gxid", "gxid 0", body('T', 0, 0)},
		{"no participant", "no participant", body('T', 1)},
		{"count above", "3 participants", count},
		{"count below", "takes 22 bytes, but has 23", append(body('T', 1, 0), 0)},
		{"twice", "content 2 twice", body('T', 7, 2, 0, 2)},
		{"negative", "content -2", body('T', 7, -2)},
		{"one-phase of two", "one-phase and names 2", body('O', 7, 0, 1)},
	} {
		_, mine, err := Messages{}.CommitRecord(DefaultCommitPrefix, c.body)
		if !mine || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: mine=%v, error %v, want %q", c.name, mine, err, c.want)
		}
	}
	if _, mine, err := (Messages{}).CommitRecord("something.else", nil); mine || err != nil {
		t.Errorf("foreign prefix: mine=%v, %v", mine, err)
	}
	if _, mine, _ := (Messages{CommitPrefix: "x"}).CommitRecord("x", body('T', 1, 0)); !mine {
		t.Error("configured prefix is not taken")
	}
}

func TestPart(t *testing.T) {
	id := Identity{1 << 63, dtx.OnePhase}
	got, mine, err := Messages{}.Part(DefaultPartPrefix, AppendPart(nil, id))
	if err != nil || !mine || got != id {
		t.Errorf("got %v, %v, %v", got, mine, err)
	}
	for name, body := range map[string][]byte{
		"empty":   {},
		"short":   AppendPart(nil, id)[:9],
		"long":    append(AppendPart(nil, id), 0),
		"gxid 0":  AppendPart(nil, Identity{0, 'T'}),
		"kind":    AppendPart(nil, Identity{1, 'x'}),
		"version": {0, 'T', 0, 0, 0, 0, 0, 0, 0, 1},
	} {
		if _, mine, err := (Messages{}).Part(DefaultPartPrefix, body); !mine || err == nil {
			t.Errorf("%s: mine=%v, %v", name, mine, err)
		}
	}
	if _, mine, err := (Messages{}).Part("other", nil); mine || err != nil {
		t.Errorf("foreign prefix: %v, %v", mine, err)
	}
}

func TestGID(t *testing.T) {
	for gid, want := range map[string]dtx.GXID{
		"1":                     1,
		"18446744073709551615":  1<<64 - 1,
		"1700000000-42":         1700000000<<32 | 42,
		"1700000001-42":         1700000001<<32 | 42,
		"4294967295-4294967295": 1<<64 - 1,
		"1700000000-0000000042": 1700000000<<32 | 42,
		"0007":                  7,
	} {
		got, err := Messages{}.GID(gid)
		if err != nil || got != (Identity{want, dtx.TwoPhase}) {
			t.Errorf("%q: %v, %v", gid, got, err)
		}
	}
	for _, gid := range []string{
		"", "0", "-1", "1-", "-", "+1", "1-2-3", "x", "1 ", "18446744073709551616", "1-x", "x-1",
		"4294967296-1", "1-4294967296", "1-0", "1-+1",
		"0x10", "1_000", strings.Repeat("9", 1000),
	} {
		if got, err := (Messages{}).GID(gid); err == nil {
			t.Errorf("%q passes as %v", gid, got)
		} else if len(err.Error()) > 300 {
			t.Errorf("error of %d bytes", len(err.Error()))
		}
	}
}

func TestValidate(t *testing.T) {
	for _, m := range []Messages{{}, {CommitPrefix: "a"}, {CommitPrefix: "a", PartPrefix: "b"}} {
		if err := m.Validate(); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
	for _, m := range []Messages{
		{CommitPrefix: "a", PartPrefix: "a"},
		{PartPrefix: DefaultCommitPrefix},
		{PartPrefix: "pg_ddl_x"},
		{CommitPrefix: "a\x00b"},
	} {
		if err := m.Validate(); err == nil {
			t.Errorf("%+v passes", m)
		}
	}
}

func FuzzCarrier(f *testing.F) {
	f.Add(AppendCommitRecord(nil, dtx.CommitRecord{GXID: 7, Kind: 'T', Participants: []dtx.Content{-1, 0, 2}}), "17-4")
	f.Add(AppendPart(nil, Identity{9, 'O'}), "9")
	f.Fuzz(func(t *testing.T, body []byte, gid string) {
		if r, _, err := (Messages{}).CommitRecord(DefaultCommitPrefix, body); err == nil {
			if !r.Kind.Valid() || r.GXID == 0 || len(r.Participants) == 0 || 20+2*len(r.Participants) != len(body) {
				t.Fatalf("accepted %+v", r)
			}
			for i, c := range r.Participants {
				if c < dtx.Coordinator || i > 0 && c <= r.Participants[i-1] {
					t.Fatalf("accepted participants %v", r.Participants)
				}
			}
		}
		if id, _, err := (Messages{}).Part(DefaultPartPrefix, body); err == nil && (id.GXID == 0 || !id.Kind.Valid()) {
			t.Fatalf("accepted %+v", id)
		}
		if id, err := (Messages{}).GID(gid); err == nil && id.GXID == 0 {
			t.Fatalf("accepted gid %q", gid)
		}
	})
}
