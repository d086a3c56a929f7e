package main

import (
	"bytes"
	"os"
	"testing"
)

func TestManualPageIsUpToDate(t *testing.T) {
	want, err := os.ReadFile("../../docs/hybridfw.8")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	printMan(&got)
	if !bytes.Equal(got.Bytes(), want) {
		t.Error("docs/hybridfw.8 is not what the command table says: make generate")
	}
}
