package template

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// CheckArtifacts says what would fail on every invocation of a function after a deploy that went well: an artifact that is
// not there, is not called bootstrap, is not executable, or is built for another processor. Folder is where `sam build`
// puts its artifacts, one folder a function. All faults are reported.
func (t *Template) CheckArtifacts(folder string) error {
	functions, err := t.Functions()
	if err != nil {
		return err
	}
	faults := make([]error, 0, len(functions))
	for _, f := range functions {
		if err := f.check(filepath.Join(folder, f.ID)); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", f.ID, err))
		}
	}
	return errors.Join(faults...)
}

func (f Function) check(folder string) error {
	if !strings.HasPrefix(f.Runtime, "provided") {
		return fmt.Errorf("runtime %q: a Go function runs on provided.al2023", f.Runtime)
	}
	machine, ok := map[string]elf.Machine{"arm64": elf.EM_AARCH64, "x86_64": elf.EM_X86_64}[f.Architectures[0]]
	if !ok || len(f.Architectures) > 1 {
		return fmt.Errorf("architectures %v: want arm64 or x86_64", f.Architectures)
	}
	path := filepath.Join(folder, "bootstrap")
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s has no file called bootstrap, which is what %s starts%s", folder, f.Runtime, found(folder))
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 != 0o111:
		return fmt.Errorf("%s has mode %v: it must be a file that everybody may execute", path, info.Mode())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	binary, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%s is no Linux program: %w", path, err)
	}
	if binary.Type != elf.ET_EXEC && binary.Type != elf.ET_DYN {
		return fmt.Errorf("%s is an ELF file of type %v, no program", path, binary.Type)
	}
	if binary.Machine != machine {
		return fmt.Errorf("%s is built for %v, and the template says %s", path, binary.Machine, f.Architectures[0])
	}
	for _, p := range binary.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is linked dynamically: build it with CGO_ENABLED=0", path)
		}
	}
	return nil
}

// found names what is there instead.
func found(folder string) string {
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) == 0 {
		return ""
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return "; it holds " + strings.Join(names, ", ")
}
