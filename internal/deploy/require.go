package deploy

import (
	"fmt"
	"strconv"
	"strings"
)

// checkDriver refuses an image that asks for a newer driver than the machine's, before a start that would fail, or fall back, within.
// Variables of the deployment come after the image's own, as in the container.
func (o Options) checkDriver(image string, env []string) error {
	unmet := unmetRequirement(env, map[string]string{"driver": o.Driver, "cuda": o.CUDA})
	if unmet == "" {
		return nil
	}
	return hinted(fmt.Errorf("the driver is too old for image %s: it wants %s, and the driver is %s for CUDA %s", image, unmet, o.Driver, o.CUDA), driverHint)
}

const driverHint = "update the NVIDIA driver, or choose an image built for an older CUDA; NVIDIA_DISABLE_REQUIRE: \"1\" in env skips this check"

// unmetRequirement is the first requirement of a container's variables that known facts surely fail, "" if there is none. The language
// is that of NVIDIA's container toolkit: every NVIDIA_REQUIRE_* variable must hold; a blank means or, a comma means and. Images from
// before it have CUDA_VERSION only: the driver must support that one. A condition on what is not known (brand, arch, or a fact that is
// "") counts as met: then the engine decides.
func unmetRequirement(env []string, facts map[string]string) string {
	vars := map[string]string{}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	if off, err := strconv.ParseBool(vars["NVIDIA_DISABLE_REQUIRE"]); err == nil && off {
		return ""
	}
	if v := vars["CUDA_VERSION"]; v != "" && vars["NVIDIA_REQUIRE_CUDA"] == "" {
		if parts := strings.SplitN(v, ".", 3); len(parts) > 1 {
			vars["NVIDIA_REQUIRE_CUDA"] = "cuda>=" + parts[0] + "." + parts[1]
		}
	}
	for _, name := range sortedKeys(vars) {
		alternatives := strings.Fields(vars[name])
		if !strings.HasPrefix(name, "NVIDIA_REQUIRE_") || len(alternatives) == 0 {
			continue
		}
		met := false
		for _, a := range alternatives {
			met = met || allMet(strings.Split(a, ","), facts)
		}
		if !met {
			more := ""
			if n := len(alternatives) - 1; n > 0 {
				more = fmt.Sprintf(" (or one of %d others in %s)", n, name)
			}
			return alternatives[0] + more
		}
	}
	return ""
}

// allMet reports whether no condition surely fails.
func allMet(conditions []string, facts map[string]string) bool {
	for _, c := range conditions {
		i := strings.IndexAny(c, "<>=!")
		if i < 0 {
			continue
		}
		value := strings.TrimLeft(c[i:], "<>=!")
		operator, fact := c[i:len(c)-len(value)], facts[c[:i]]
		order, comparable := compareVersions(fact, value)
		if !comparable {
			continue
		}
		met := map[string]bool{"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0, "=": order == 0, "==": order == 0, "!=": order != 0}
		if ok, known := met[operator]; known && !ok {
			return false
		}
	}
	return true
}

// compareVersions orders dotted numbers, a missing place as 0; false if either is none.
func compareVersions(a, b string) (order int, ok bool) {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(x), len(y)) {
		p, q := 0, 0
		var err error
		if i < len(x) {
			if p, err = strconv.Atoi(x[i]); err != nil {
				return 0, false
			}
		}
		if i < len(y) {
			if q, err = strconv.Atoi(y[i]); err != nil {
				return 0, false
			}
		}
		if order == 0 && p != q {
			order = 1
			if p < q {
				order = -1
			}
		}
	}
	return order, true
}
