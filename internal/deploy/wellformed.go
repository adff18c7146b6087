package deploy

import (
	"fmt"
	"reflect"
	"strings"

	"gopkg.in/yaml.v3"
)

// wellFormed holds a document against the type it is decoded into: it refuses fields that t does not have, values of another kind (the
// decoder would cut 80.5 down to 80, leave out an empty item, and name Go's types), and anchors, aliases and tags, whose lines would mislead.
func wellFormed(n *yaml.Node, t reflect.Type, path string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name := strings.TrimSuffix(path, ".")
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return fmt.Errorf("line %d: anchors and aliases are not used in deployment files", n.Line)
	case n.Style&yaml.TaggedStyle != 0:
		return fmt.Errorf("line %d: tags such as %s are not used in deployment files", n.Line, n.Tag)
	case n.ShortTag() == "!!null":
		return nil // as if it were left out
	}
	want, wrong := "", false
	switch t.Kind() {
	case reflect.Struct:
		if t == reflect.TypeFor[GPURequest]() && n.Kind == yaml.ScalarNode {
			return nil // reads itself
		}
		want, wrong = "a mapping of fields", n.Kind != yaml.MappingNode
	case reflect.Map:
		want, wrong = "a mapping of names to values", n.Kind != yaml.MappingNode
	case reflect.Slice:
		want, wrong = "a list, [a, b]", n.Kind != yaml.SequenceNode
	case reflect.String:
		want, wrong = "one value", n.Kind != yaml.ScalarNode
	case reflect.Bool:
		want, wrong = "true or false", n.ShortTag() != "!!bool"
	case reflect.Int, reflect.Int64:
		if reflect.PointerTo(t).Implements(reflect.TypeFor[yaml.Unmarshaler]()) {
			return nil // reads itself
		}
		want, wrong = "a whole number", n.ShortTag() != "!!int"
	}
	if wrong && t == reflect.TypeFor[GPURequest]() {
		want = "a number, all, or one of count, indices and uuids"
	}
	if wrong {
		return fmt.Errorf("line %d: %s is %s, not %s", n.Line, name, want, shown(n))
	}
	switch n.Kind {
	case yaml.SequenceNode:
		for _, c := range n.Content {
			if c.ShortTag() == "!!null" {
				return fmt.Errorf("line %d: %s has an item without a value", c.Line, name)
			}
			if err := wellFormed(c, t.Elem(), path); err != nil {
				return err
			}
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if key.Kind == yaml.AliasNode || key.Anchor != "" {
				return fmt.Errorf("line %d: anchors and aliases are not used in deployment files", key.Line)
			}
			next := t
			if t.Kind() == reflect.Map {
				next = t.Elem()
			} else {
				names := fieldNames(t)
				var ok bool
				if next, ok = names[key.Value]; !ok {
					return fmt.Errorf("line %d: there is no field %q%s", key.Line, path+key.Value, didYouMean(key.Value, names))
				}
			}
			if err := wellFormed(value, next, path+key.Value+"."); err != nil {
				return err
			}
		}
	}
	return nil
}

// shown is a value in an error message, cut short.
func shown(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	text := []rune(n.Value)
	if len(text) > 40 {
		text = append(text[:40], '…')
	}
	if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
		return fmt.Sprintf("the text %q", string(text))
	}
	return fmt.Sprintf("%q", string(text))
}
