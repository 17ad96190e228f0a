/* object_memory.h - libcurl's memory: wiped when it is freed, and texts, among which are its copies of the credentials,
 * in pages that no core file has. Threads: any. */
#ifndef OBJECT_MEMORY_H
#define OBJECT_MEMORY_H

#include <stdbool.h>

/* curl_global_init with such memory; false: no memory. curl_global_cleanup is its reverse. */
bool object_memory_begin(void);

#endif
