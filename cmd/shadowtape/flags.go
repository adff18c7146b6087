package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"
)

// applyConfig sets the flags that a YAML file names, but for those that the command line has set. A list sets a flag once for each of
// its values.
func applyConfig(c *cobra.Command, file string) error {
	if file == "" {
		return nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(b, &values); err != nil {
		return fmt.Errorf("read config %s: %w", file, err)
	}
	var errs []error
	for name, v := range values {
		f := c.Flags().Lookup(name)
		if f == nil || name == "config" {
			errs = append(errs, fmt.Errorf("config %s: %s has no flag --%s", file, c.Name(), name))
			continue
		}
		if f.Changed {
			continue
		}
		list, ok := v.([]any)
		if !ok {
			list = []any{v}
		}
		for _, e := range list {
			if err := c.Flags().Set(name, fmt.Sprint(e)); err != nil {
				errs = append(errs, fmt.Errorf("config %s: %s: %w", file, name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// localOnly is the error of an output that is worked in and cannot be object storage.
func localOnly(where string) error {
	return fmt.Errorf("-o %s: this is worked in and must be a directory; its runs can be copied there when it is done", where)
}
