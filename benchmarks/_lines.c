/* How fast this machine reads lines of 64 bytes at random: `benchmarks/remap.py` holds the id index against it. */

#include <stdint.h>

/* The sum of the first number of each of the lines [num] at `places`, asking `ahead` of them ahead. */
int64_t touch(const int64_t *places, int64_t num, const int64_t *lines, int64_t ahead) {
    int64_t sum = 0;
    for (int64_t i = 0; i < num; i++) {
        __builtin_prefetch(lines + 8 * places[i + ahead < num ? i + ahead : i]);
        sum += lines[8 * places[i]];
    }
    return sum;
}
