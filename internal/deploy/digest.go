package deploy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// fileDigest is the SHA-256 of a file in hex.
func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("digest %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// small are the extensions of a model's configuration, index, template and tokenizer files; weights those of its tensors.
var (
	small   = []string{".json", ".jinja", ".model", ".txt", ".yaml", ".yml", ".py", ".tiktoken"}
	weights = []string{".safetensors", ".gguf", ".bin", ".pt", ".pth", ".engine", ".onnx", ".ggml"}
)

// digestFiles digests a file, or the configuration and index files of a directory and, on request, its weights. The result is by
// relative path; weights that were not read are counted by size, so that another download is noticed. A directory's tree is not followed
// deeper than three levels nor beyond 10,000 entries.
func digestFiles(ctx context.Context, root string, all bool) (map[string]any, error) {
	info, err := os.Stat(root)
	if err != nil {
		return nil, fmt.Errorf("digest files: %w", err)
	}
	if !info.IsDir() {
		sum, err := fileDigest(root)
		return map[string]any{"sha256": sum}, err
	}
	files, sizes := map[string]any{}, map[string]any{}
	seen := 0
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if seen++; seen > 10000 {
			return fmt.Errorf("digest files: %s has more than 10,000 entries", root)
		}
		if d.IsDir() {
			if strings.Count(filepath.ToSlash(rel), "/") >= 2 || strings.HasPrefix(d.Name(), ".") && rel != "." {
				return filepath.SkipDir
			}
			return nil
		}
		ext := strings.ToLower(filepath.Ext(path))
		isSmall, isWeight := slices.Contains(small, ext), slices.Contains(weights, ext)
		if !isSmall && !isWeight {
			return nil
		}
		info, err := os.Stat(path) // model caches hold links
		if err != nil {
			return fmt.Errorf("digest files: %w", err)
		}
		if !info.Mode().IsRegular() {
			return nil
		}
		if isWeight && !all {
			sizes[filepath.ToSlash(rel)] = info.Size()
			return nil
		}
		sum, err := fileDigest(path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(rel)] = sum
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := map[string]any{"sha256": files}
	if len(sizes) > 0 {
		out["weight_bytes"] = sizes
	}
	if t := templateDigest(root); t != "" {
		out["chat_template_sha256"] = t
	}
	return out, nil
}

// templateDigest is the SHA-256 of a model's chat template: chat_template.jinja, or the text in tokenizer_config.json; "" without one.
func templateDigest(root string) string {
	if sum, err := fileDigest(filepath.Join(root, "chat_template.jinja")); err == nil {
		return sum
	}
	b, err := os.ReadFile(filepath.Join(root, "tokenizer_config.json"))
	if err != nil {
		return ""
	}
	var config struct {
		Template json.RawMessage `json:"chat_template"`
	}
	if json.Unmarshal(b, &config) != nil || len(config.Template) == 0 || string(config.Template) == "null" {
		return ""
	}
	text := []byte(config.Template)
	var one string
	if json.Unmarshal(config.Template, &one) == nil {
		text = []byte(one)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
