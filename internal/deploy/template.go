package deploy

import (
	"fmt"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"
)

// place is a ${matrix.NAME} in a deployment file. Other ${…} places belong to the launch: ${port}, ${self}, ${env:NAME}.
var place = regexp.MustCompile(`\$\{matrix\.([^}]*)\}`)

// fill puts matrix values into the scalars of a document. It works on the parsed tree, so a value can never add a field or a line. A
// scalar that is nothing but a place takes its value's own type: ${matrix.gpus} with 2 is a number.
func fill(n *yaml.Node, values map[string]string) error {
	if n.Kind != yaml.ScalarNode {
		for _, c := range n.Content {
			if err := fill(c, values); err != nil {
				return err
			}
		}
		return nil
	}
	if !strings.Contains(n.Value, "${matrix.") {
		return nil
	}
	whole := place.FindString(n.Value) == n.Value
	var missing []string
	n.Value = place.ReplaceAllStringFunc(n.Value, func(m string) string {
		name := place.FindStringSubmatch(m)[1]
		v, ok := values[name]
		if !ok {
			missing = append(missing, name)
		}
		return v
	})
	if len(missing) > 0 {
		return fmt.Errorf("line %d: ${matrix.%s} has no value; it has one only in a sweep over %q", n.Line, missing[0], missing[0])
	}
	if whole && n.Style == 0 {
		n.Tag = "" // resolved again from its text
	}
	return nil
}

// MatrixNames lists the matrix values that a deployment file's text asks for, in order of appearance, each once.
func MatrixNames(text []byte) []string {
	var names []string
	seen := map[string]bool{}
	for _, m := range place.FindAllSubmatch(text, -1) {
		if name := string(m[1]); !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}
