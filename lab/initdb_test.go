package lab

import (
	"bytes"
	"testing"
)

// A content without its checksum is refused and left as it is.
func TestSetControlIDNeedsChecksum(t *testing.T) {
	b := bytes.Repeat([]byte("a control file of no server"), 40)
	before := bytes.Clone(b)
	if err := setControlID(b, 7); err == nil {
		t.Error("a content without checksum is taken")
	}
	if !bytes.Equal(b, before) {
		t.Error("the content was changed")
	}
}
