package deploy

import (
	"errors"
	"strings"
	"testing"
)

// What images of NVIDIA's ask for, against drivers. The long expression has the form of the cuda:12.4 images': either the driver
// supports that CUDA, or it is of a data-center branch that the compatibility libraries in the image work with.
func TestUnmetRequirement(t *testing.T) {
	const cuda124 = "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=535,driver<536"
	for _, c := range []struct {
		name, driver, cuda string
		env                []string
		unmet              string
	}{
		{"nothing asked", "390.1", "9.0", []string{"PATH=/bin"}, ""},
		{"new enough", "550.54.15", "12.4", []string{cuda124}, ""},
		{"newer, by number and not by letter", "575.1", "12.10", []string{cuda124}, ""},
		{"a branch that the compatibility libraries know", "535.104.05", "12.2", []string{cuda124}, ""},
		{"too old", "525.60.13", "12.0", []string{cuda124}, "cuda>=12.4 (or one of 2 others in NVIDIA_REQUIRE_CUDA)"},
		{"just above a branch", "471.0", "11.4", []string{cuda124}, "cuda>=12.4 (or one of 2 others in NVIDIA_REQUIRE_CUDA)"},
		{"switched off", "390.1", "9.0", []string{cuda124, "NVIDIA_DISABLE_REQUIRE=true"}, ""},
		{"switched off by the deployment, after the image", "390.1", "9.0", []string{"NVIDIA_DISABLE_REQUIRE=0", cuda124, "NVIDIA_DISABLE_REQUIRE=1"}, ""},
		{"unknown driver", "", "", []string{cuda124}, ""},
		{"all variables must hold", "550.54", "12.4", []string{cuda124, "NVIDIA_REQUIRE_DRIVER=driver>=560"}, "driver>=560"},
		{"the version alone, as old images have it", "525.60", "12.0", []string{"CUDA_VERSION=12.4.1"}, "cuda>=12.4"},
		{"the version alone, met", "550.54", "12.4", []string{"CUDA_VERSION=12.4.1"}, ""},
		{"the version says nothing beside the requirement", "550.54", "12.4", []string{"CUDA_VERSION=13.0.0", cuda124}, ""},
		{"odd text is met", "550.54", "12.4", []string{"NVIDIA_REQUIRE_X=arch>=9.0 nonsense", "NVIDIA_REQUIRE_Y=cuda~12", "CUDA_VERSION=latest"}, ""},
		{"other operators", "550.54", "12.4", []string{"NVIDIA_REQUIRE_A=cuda!=12.4"}, "cuda!=12.4"},
		{"equal in other words", "550.54", "12.4", []string{"NVIDIA_REQUIRE_A=cuda=12.4.0,driver<=550.54,driver>550,cuda<13"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := unmetRequirement(c.env, map[string]string{"driver": c.driver, "cuda": c.cuda}); got != c.unmet {
				t.Errorf("%q, want %q", got, c.unmet)
			}
		})
	}
	err := Options{Driver: "525.60.13", CUDA: "12.0"}.checkDriver("vllm/vllm-openai:v0.9", []string{"CUDA_VERSION=12.8.1"})
	var e *Error
	if want := "the driver is too old for image vllm/vllm-openai:v0.9: it wants cuda>=12.8, and the driver is 525.60.13 for CUDA 12.0"; !errors.As(err, &e) || err.Error() != want || !strings.Contains(e.Hint, "update the NVIDIA driver") {
		t.Errorf("%v", err)
	}
}

// What NVIDIA's hook answers where the driver was not known before.
func TestCreateErrorOfAnOldDriver(t *testing.T) {
	answer := errors.New("failed to create task: error running prestart hook #0: exit status 1, stderr: nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer version, or use an earlier cuda container: unknown")
	var e *Error
	if err := (&container{}).createError(answer); !errors.As(err, &e) || e.Hint != driverHint {
		t.Errorf("%v", err)
	}
}
