// A stand-in for NVIDIA's libnvidia-ml.so.1 on a machine without one: two GPUs, driven by variables, so that opening the library, looking
// its symbols up, and the C interface are tested for real. Not a symbol more than a driver of that age has: a call that is not there ends
// the program, as it would on the machine.
//
//   FAKE_NVML_INIT=N        what the first call answers (nvmlReturn_t)
//   FAKE_NVML_FOREIGN=PID   a process that uses GPU 0
//   FAKE_NVML_LOST=1        GPU 1 is lost
//   OLD                     a driver of 2018 (390): no versioned calls, no energy, no memory reserve, no event reasons
//   ANCIENT                one that lacks even what is needed
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include "nvml.h"

#define SAY(...) return snprintf(out, n, __VA_ARGS__) < (int)n ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE
#define INDEX(d) ((int)(intptr_t)(d).handle - 1) // the binding's header wraps the pointer in a structure

static int number(const char *name) {
	const char *v = getenv(name);
	return v ? atoi(v) : 0;
}

static nvmlReturn_t alive(nvmlDevice_t d) { return INDEX(d) == 1 && number("FAKE_NVML_LOST") ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS; }

nvmlReturn_t nvmlInit_v2(void) { return number("FAKE_NVML_INIT"); }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned n) { SAY("%s", DRIVER); }
nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned n) { SAY("12.%s", DRIVER); }
nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *out, unsigned n) { SAY("/usr/bin/somebody%u", pid); }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned i, nvmlDevice_t *d) { d->handle = (void *)(intptr_t)(i + 1); return i < 2 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT; }
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *d) {
	d->handle = (void *)(intptr_t)(strcmp(uuid, "GPU-fake-1") == 0 ? 2 : 1);
	return strncmp(uuid, "GPU-fake-", 9) ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *out, unsigned n) { SAY("GPU-fake-%d", INDEX(d)); }
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *out, unsigned n) { SAY("Fake %d", INDEX(d)); }
nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t d, char *out, unsigned n) { SAY("1.%d", INDEX(d)); }
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *p) { memset(p, 0, sizeof *p); snprintf(p->busId, sizeof p->busId, "0000:0%d:00.0", INDEX(d)); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m) { m->total = 80ull << 30; m->free = 79ull << 30; m->used = 1ull << 30; return alive(d); }
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t d, nvmlComputeMode_t *m) { *m = NVML_COMPUTEMODE_DEFAULT; return alive(d); }
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t d, nvmlEnableState_t *m) { *m = NVML_FEATURE_ENABLED; return alive(d); }
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *mw) { *mw = 700000; return alive(d); }
nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t d, nvmlEnableState_t *now, nvmlEnableState_t *next) { *now = *next = NVML_FEATURE_ENABLED; return alive(d); }
nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t d, unsigned *v) { *v = 5; return alive(d); }
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t d, unsigned *v) { *v = 16; return alive(d); }
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned i, nvmlEnableState_t *on) { return NVML_ERROR_NOT_SUPPORTED; }
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, nvmlClockType_t c, unsigned *v) { *v = 1980; return alive(d); }
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, nvmlClockType_t c, unsigned *v) { *v = 1755; return alive(d); }
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u) { u->gpu = 50; u->memory = 25; return alive(d); }
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *mw) { *mw = 123456; return alive(d); }
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, nvmlTemperatureSensors_t s, unsigned *c) { *c = 41; return alive(d); }
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *v) { *v = nvmlClocksEventReasonGpuIdle; return alive(d); }
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_v1_t *list) { *n = 0; return alive(d); }
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t d, nvmlPcieUtilCounter_t c, unsigned *kb) { *kb = 7; return alive(d); }
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, nvmlMemoryErrorType_t t, nvmlEccCounterType_t c, unsigned long long *n) { *n = 0; return alive(d); }
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *l) { *l = NVML_TOPOLOGY_SYSTEM; return NVML_SUCCESS; }
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *s) { return NVML_ERROR_NOT_SUPPORTED; }
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t s) { return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long e, nvmlEventSet_t s) { return NVML_ERROR_NOT_SUPPORTED; }

#ifndef ANCIENT
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_v1_t *list) {
	int pid = INDEX(d) == 0 ? number("FAKE_NVML_FOREIGN") : 0;
	unsigned room = *n;
	*n = pid > 0;
	if (*n > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	if (*n) {
		list[0].pid = pid;
		list[0].usedGpuMemory = 1ull << 30;
	}
	return alive(d);
}
#endif

#if !defined(OLD) && !defined(ANCIENT)
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *v) { *v = 12080; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *m) {
	m->total = 80ull << 30;
	m->reserved = 600ull << 20;
	m->used = INDEX(d) == 0 && number("FAKE_NVML_FOREIGN") > 0 ? 1ull << 30 : 0;
	m->free = m->total - m->reserved - m->used;
	return alive(d);
}
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, unsigned long long *mj) { *mj = 987654; return alive(d); }
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long *v) { *v = nvmlClocksEventReasonSwPowerCap; return alive(d); }
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *now, unsigned *next) { *now = *next = NVML_DEVICE_MIG_DISABLE; return alive(d); }
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, unsigned *is) { *is = 0; return NVML_SUCCESS; }
#endif
