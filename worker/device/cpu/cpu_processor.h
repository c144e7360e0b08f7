/* What the system says of the processor, in /proc/cpuinfo. */
#ifndef PS_CPU_PROCESSOR_H
#define PS_CPU_PROCESSOR_H

#include <stdbool.h>
#include <stddef.h>

/* "AMD EPYC", or "unknown processor". */
void ps_cpu_processor_name(char *out, size_t bytes);

/* Whether the processor has instructions, by the system's word for them: "amx_fp16". */
bool ps_cpu_processor_has(const char *word);

#endif
