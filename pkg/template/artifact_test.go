package template_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/template"
)

// program is the head of an ELF file, with one program header.
func program(t *testing.T, typ elf.Type, machine elf.Machine, segment elf.ProgType) []byte {
	t.Helper()
	head := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(typ), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
	}
	var b bytes.Buffer
	for _, v := range []any{head, elf.Prog64{Type: uint32(segment)}} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func TestCheckArtifacts(t *testing.T) { // a deploy of the wrong file goes well, and every invocation fails
	arm := program(t, elf.ET_EXEC, elf.EM_AARCH64, elf.PT_LOAD)
	intel := program(t, elf.ET_EXEC, elf.EM_X86_64, elf.PT_LOAD)
	for _, tt := range []struct {
		name, properties string
		file             string
		content          []byte
		mode             os.FileMode
		want             string // "" = fine
	}{
		{"as it should be", "Runtime: provided.al2023, Architectures: [arm64]", "bootstrap", arm, 0o755, ""},
		{"position independent", "Runtime: provided.al2023, Architectures: [arm64]", "bootstrap", program(t, elf.ET_DYN, elf.EM_AARCH64, elf.PT_LOAD), 0o755, ""},
		{"x86_64", "Runtime: provided.al2023, Architectures: [x86_64]", "bootstrap", intel, 0o755, ""},
		{"called main", "Runtime: provided.al2023, Architectures: [arm64]", "main", arm, 0o755, "Extract has no file called bootstrap, which is what provided.al2023 starts; it holds main"},
		{"no folder", "Runtime: provided.al2023, Architectures: [arm64]", "", nil, 0, "has no file called bootstrap"},
		{"arm64 for a function that says nothing, which is x86_64", "Runtime: provided.al2023", "bootstrap", arm, 0o755, "is built for EM_AARCH64, and the template says x86_64"},
		{"x86_64 for arm64", "Runtime: provided.al2023, Architectures: [arm64]", "bootstrap", intel, 0o755, "is built for EM_X86_64, and the template says arm64"},
		{"not executable", "Runtime: provided.al2023, Architectures: [arm64]", "bootstrap", arm, 0o644, "has mode -rw-r--r--"},
		{"executable by its owner alone", "Runtime: provided.al2023, Architectures: [arm64]", "bootstrap", arm, 0o744, "has mode -rwxr--r--"},
		{"a script", "Runtime: provided.al2023, Architectures: [arm64]", "bootstrap", []byte("#!/bin/sh\n"), 0o755, "is no Linux program"},
		{"empty", "Runtime: provided.al2023, Architectures: [arm64]", "bootstrap", nil, 0o755, "is no Linux program"},
		{"an object file", "Runtime: provided.al2023, Architectures: [arm64]", "bootstrap", program(t, elf.ET_REL, elf.EM_AARCH64, elf.PT_LOAD), 0o755, "is an ELF file of type ET_REL"},
		{"linked dynamically", "Runtime: provided.al2023, Architectures: [arm64]", "bootstrap", program(t, elf.ET_EXEC, elf.EM_AARCH64, elf.PT_INTERP), 0o755, "is linked dynamically"},
		{"the runtime that is gone", "Runtime: go1.x, Architectures: [x86_64]", "bootstrap", intel, 0o755, `runtime "go1.x"`},
		{"an unknown architecture", "Runtime: provided.al2023, Architectures: [riscv]", "bootstrap", arm, 0o755, "architectures [riscv]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tmpl, err := template.Parse([]byte("Resources:\n  Extract: {Type: AWS::Serverless::Function, Properties: {"+tt.properties+"}}\n"), nil)
			if err != nil {
				t.Fatal(err)
			}
			folder := t.TempDir()
			if tt.file != "" {
				path := filepath.Join(folder, "Extract", tt.file)
				if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, tt.content, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(path, tt.mode); err != nil {
					t.Fatal(err)
				}
			}
			err = tmpl.CheckArtifacts(folder)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got %v", err)
			case tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "Extract: ") || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want the function's name and %q", err, tt.want)
			}
		})
	}
}

func TestCheckArtifactsNamesEveryFunction(t *testing.T) {
	folder := t.TempDir()
	err := project(t).CheckArtifacts(folder)
	for _, id := range []string{"ExtractFunction", "TransformFunction", "GateFunction", "LoadFunction", "SettleFunction"} {
		if err == nil || !strings.Contains(err.Error(), id+": ") {
			t.Errorf("got %v, want %s in it", err, id)
		}
	}
}
