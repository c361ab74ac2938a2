// Places the processes of a measurement.
//
// Thread rule: any thread.

#ifndef PENSTOCK_BENCH_PIN_PROCESS_H_
#define PENSTOCK_BENCH_PIN_PROCESS_H_

namespace penstock::bench {

// Confines process `index` of `count` to one of the processors that it may use: without that,
// numbers are noisier. Where there are fewer processors than processes, they take turns; with a
// single processor, nothing is done.
void PinProcess(int index, int count);

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_PIN_PROCESS_H_
