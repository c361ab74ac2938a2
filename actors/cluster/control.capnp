# The control plane: one coordinator, one node agent a process. The coordinator owns the session and
# drives; a node hosts a contiguous range of a plan's devices.
#
#   node                               coordinator
#   hello, then RPC             ---->  both sides have shown that they know the job's key
#   join(info)                  ---->  its rank
#                              <----  ping() every so often, from here to the end
#                              <----  open(session): transport made; its address
#                              <----  connect(addresses of all): executors loaded
#                              <----  submit(step, feeds)
#   Observer.stepDone           ---->  reports and fetched tiles
#                              <----  close(), then another open, or exit()
#
# A session has a generation, counted from 1 by the coordinator, in every message; what comes from
# an older one has no effect. Data are host bytes in the machine's order: a job's processes run on
# one architecture.
#
# Whatever may be long (a plan, a step's feeds and fetches, a state) is read by whoever wants it,
# from whoever has it, piece by piece and a few pieces at a time. So no message is long, heartbeats
# pass between the pieces, and nothing comes that was not asked for.

@0xc0a8f7d2b1e43596;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("penstock::actors::control");

interface Coordinator {
  # A node that hears nothing for `silenceMs` ends. numDevices 0: not known yet.
  join @0 (info :NodeInfo, node :Node) -> (rank :UInt32, silenceMs :UInt32, firstDevice :UInt32,
                                           numDevices :UInt32);
}

struct NodeInfo {
  rank @0 :Int32;  # the one it was started for, or -1: any
  pid @1 :Int32;
  host @2 :Text;
  numCores @3 :UInt32;  # that it may use
  memoryBytes @4 :UInt64;
  hostCores @5 :UInt32;
  interface @6 :Text;  # that carries its data
}

interface Node {
  ping @0 () -> ();
  open @1 (session :SessionSpec, observer :Observer) -> (address :Data);
  connect @2 (generation :UInt32, processes :List(ProcessAddress)) -> ();
  submit @3 (generation :UInt32, step :Int64, feeds :Bulk) -> ();
  describe @4 (generation :UInt32, timeoutMs :UInt32) -> (lines :List(Text));
  # Bytes of the tile that one of the state's placements in the plan has.
  readState @5 (generation :UInt32, state :UInt32, placement :UInt32, offset :UInt64,
                size :UInt32) -> Piece;
  # The tiles that the node's devices hold, each once, in the order of their first placements.
  writeState @6 (generation :UInt32, state :UInt32, tiles :Bulk) -> ();
  # Part of what there is to take, until no more is left.
  takeTrace @7 (generation :UInt32) -> (events :List(TraceEvent), hasMore :Bool);
  close @8 (generation :UInt32) -> ();
  # `failure` says why the job has failed. It is empty if the job is over, and for nodes that the
  # coordinator has started.
  exit @9 (failure :Text) -> ();
  # What the node has done so far: see actors/stall_detector.h. An error if a policy is busy.
  reportActivity @10 (generation :UInt32) -> (moves :List(Int64), idlePolls :List(Int64),
                                              numDecisions :Int64, communications :List(UInt64),
                                              declined :Text);
}

interface Observer {
  # The fetches are the tiles that the node's fetch actors have written, in the order of devices,
  # actors and micro-batches.
  stepDone @0 (generation :UInt32, step :Int64, reports :List(DeviceReport), fetches :Bulk) -> ();
  error @1 (generation :UInt32, device :UInt32, step :Int64, status :Status) -> ();
  failure @2 (generation :UInt32, status :Status) -> ();
  # The node's devices stand still, and the policy of a stage declines what could run. Repeated
  # while that lasts. The coordinator asks all nodes for their activity.
  declined @3 (generation :UInt32) -> ();
}

# Bytes whose number both sides know: all of them here if they are few, otherwise to be read.
struct Bulk {
  union {
    here @0 :Data;
    there @1 :Source;
  }
}

# Good for as long as the call is under way that it came with.
interface Source {
  read @0 (offset :UInt64, size :UInt32) -> Piece;
}

# As many bytes as were asked for.
struct Piece {
  bytes @0 :Data;
}

struct SessionSpec {
  generation @0 :UInt32;
  plan @1 :Bulk;  # as in a plan file, with the actors of these devices alone
  firstDevice @2 :UInt32;
  numDevices @3 :UInt32;
  threadsPerDevice @4 :UInt32;
  seed @5 :UInt64;
  timeoutMs @6 :UInt64;
  traceCapacity @7 :UInt64;
  maxMemoryBytes @8 :UInt64;  # of its devices together; 0: the machine's
  planBytes @9 :UInt64;
  checkResults @10 :UInt8;  # of kernels::ResultCheck
  firstStep @11 :Int64;
}

struct ProcessAddress {
  firstDevice @0 :UInt32;
  address @1 :Data;
}

struct DeviceReport {
  device @0 :UInt32;
  isPoisoned @1 :Bool;
  wallNs @2 :Int64;
  waitNs @3 :Int64;
}

struct TraceEvent {
  device @0 :UInt32;
  actor @1 :UInt32;
  phase @2 :UInt32;
  microbatch @3 :UInt32;
  step @4 :Int64;
  beginNs @5 :Int64;
  endNs @6 :Int64;
}

struct Status {
  code @0 :UInt32;  # of absl::StatusCode
  message @1 :Text;
}
