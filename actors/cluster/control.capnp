# The control plane: one coordinator, one node agent a process. The coordinator owns the session and
# drives; a node hosts a contiguous range of a plan's devices.
#
#   node                               coordinator
#   hello, then RPC             ---->  both sides have shown that they know the job's key
#   join(info)                  ---->  its rank
#                              <----  ping() every so often, from here to the end
#                              <----  open(session): transport made; its address
#                              <----  createGroupIds(): where devices run collectives themselves
#                              <----  connect(addresses of all): executors loaded
#                              <----  submit(step, feeds)
#   Observer.stepDone           ---->  reports and fetched tiles
#                              <----  keepStates(): copies that outlive the session
#                              <----  openExchange(), runExchange(), finishExchange(): what another
#                                     layout needs of the copies goes from node to node
#                              <----  close(), then another open, or exit()
#
# Several sessions may be open at a time, such as one that trains and waits while another validates.
#
# A session has a generation, counted from 1 by the coordinator, in every message; what comes from
# an older one has no effect. Data are host bytes in the machine's order: a job's processes run on
# one architecture.
#
# A call that fails returns a status with the code, the message and the origin of the error. An RPC
# exception means only that the connection or the protocol has failed.
#
# Long data (a plan, a step's feeds and fetches, a state) are read by the receiver from their owner,
# a few chunks at a time. So no message is long, heartbeats pass between chunks, and no data arrive
# that were not requested.

@0xc0a8f7d2b1e43596;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("penstock::actors::control");

# What a job does, for those who look at it: see job_status.h.
interface Monitor {
  status @0 () -> (job :JobStatus, status :Status);
}

interface Coordinator extends(Monitor) {
  # A node that hears nothing for `silenceMs` ends, and says that `coordinator`, the process and its
  # host, is gone, and `resumeHint`, how the job goes on without it. That holds until a ping says
  # another bound. numDevices 0: not known yet.
  join @0 (info :NodeInfo, node :Node) -> (rank :UInt32, silenceMs :UInt32, firstDevice :UInt32,
                                           numDevices :UInt32, status :Status, coordinator :Text,
                                           resumeHint :Text);
  # How a member has ended, as waitpid tells it: from the process that has started it, which joins
  # with nothing itself. Of a member whose info says that this will come; once.
  reportEnd @1 (rank :UInt32, pid :Int32, waitStatus :Int32, isOutOfMemory :Bool) -> ();
}

struct NodeInfo {
  rank @0 :Int32;  # the one it was started for, or -1: any
  pid @1 :Int32;
  host @2 :Text;
  processors @3 :List(UInt32);  # that it may use
  memoryBytes @4 :UInt64;
  quotas @5 :List(CoreQuota);  # of its control group and the parents of that, innermost first
  interface @6 :Text;  # that carries its data
  isWatched @7 :Bool;  # Coordinator.reportEnd will be called where the node dies
}

# Time that all processes in a control group may use together: see base/process_cores.h.
struct CoreQuota {
  group @0 :Text;
  numCores @1 :Float64;
}

interface Node {
  # `silenceMs` replaces the bound that join() returned; 0: no change.
  ping @0 (silenceMs :UInt32) -> ();
  open @1 (session :SessionSpec, observer :Observer)
      -> (address :Data, status :Status, communicators :Communicators);
  # Without `collectives`, the host runs them.
  connect @2 (generation :UInt32, processes :List(ProcessAddress), collectives :StreamCollectives)
      -> (status :Status);
  submit @3 (generation :UInt32, step :Int64, feeds :ChunkedBytes) -> (status :Status);
  describe @4 (generation :UInt32, timeoutMs :UInt32) -> (waits :List(Wait), status :Status);
  # Bytes of the tile that one of the state's placements in the plan has.
  readState @5 (generation :UInt32, state :UInt32, placement :UInt32, offset :UInt64,
                size :UInt32) -> Chunk;
  # The tiles that the node's devices hold, each once, in the order of their first placements.
  writeState @6 (generation :UInt32, state :UInt32, tiles :ChunkedBytes) -> (status :Status);
  # Part of what there is to take, until no more is left.
  takeTrace @7 (generation :UInt32) -> (events :List(TraceEvent), hasMore :Bool, status :Status);
  close @8 (generation :UInt32) -> (status :Status);
  # `cause` says why the job has failed. It is OK if the job is over, and for nodes that the
  # coordinator has started. With `joinsAgain`, the job only begins: the node is to join once more,
  # at the same address and with the same key.
  exit @9 (cause :Status, joinsAgain :Bool) -> ();
  # What the node has done so far: see actors/stall_detector.h. An error if a policy is busy.
  reportActivity @10 (generation :UInt32) -> (moves :List(Int64), idlePolls :List(Int64),
                                              numDecisions :Int64, communications :List(UInt64),
                                              declined :Text, status :Status);
  # Keeps a copy of the tiles of states that lie here, under the number `kept`, until dropStates or
  # the end of the node; also when the session has ended.
  keepStates @11 (generation :UInt32, kept :UInt64, states :List(UInt32)) -> (status :Status);
  # Fills the states of a session from what is kept under a number. `missing` are those of them with
  # a tile here that was not kept.
  takeStates @12 (generation :UInt32, kept :UInt64) -> (missing :List(UInt32), status :Status);
  # Bytes of a kept tile: both numbers in the order of keepStates.
  readKept @13 (kept :UInt64, state :UInt32, tile :UInt32, offset :UInt64, size :UInt32) -> Chunk;
  dropStates @14 (kept :UInt64) -> (status :Status);
  # An exchange of kept states between nodes: see node_exchange_internal.h. Exchanges are counted
  # from 1 by the coordinator. `address` is empty without peers.
  openExchange @15 (exchange :UInt32, rank :UInt32, numRanks :UInt32, peers :List(UInt32),
                    timeoutMs :UInt64, linkTimeoutMs :UInt32) -> (address :Data, status :Status);
  # Sends from what is kept under a number, and writes into the states of a session; returns when
  # this node has nothing left to send and to receive.
  runExchange @16 (exchange :UInt32, kept :UInt64, generation :UInt32, chunkBytes :UInt32,
                   timeoutMs :UInt64, peers :List(ExchangePeer)) -> (status :Status);
  # All nodes are done, or one has failed.
  finishExchange @17 (exchange :UInt32) -> ();
  # Writes kept tiles into a new file of a checkpoint (actors/checkpoint/state_file.h), beside other
  # calls. kNotFound: its folder is not there, as on a host that does not share it, or a tile.
  writeStates @18 (kept :UInt64, path :Text, tiles :List(KeptTile), metadata :List(Text))
      -> (checksum :UInt64, status :Status);
  # Of the node's SteadyClock: see clock_alignment.h.
  readClock @19 () -> (nowNs :Int64);
  # What the devices do. It is answered beside all other calls.
  inspect @20 (generation :UInt32, timeoutMs :UInt32) -> (devices :List(DeviceState),
                                                          residentBytes :UInt64, status :Status);
  # Measures how fast the node computes, and its links to the other nodes of an exchange, which
  # measure theirs at the same time. `addresses` are those of all, by rank. The figures of a link
  # come from its lower rank.
  probe @21 (exchange :UInt32, addresses :List(Data), timeoutMs :UInt64)
      -> (flopsPerS :Float64, links :List(LinkFigures), status :Status);
  # Measures how fast the node computes on the cores that it may use: see compute_probe.h.
  measureCompute @22 () -> (flopsPerS :Float64, status :Status);
  # Makes what the members of so many groups find each other by: see transport::GroupIds. They go
  # to the nodes of the members, in connect(), and nowhere else.
  createGroupIds @23 (generation :UInt32, count :UInt32) -> (ids :List(Data), status :Status);
}

# How the devices of a node can run collectives themselves (transport::CommunicatorSource).
struct Communicators {
  name @0 :Text;  # empty: they cannot
  whyNot @1 :Text;
  hardware @2 :List(Text);  # of each device
}

# How the devices of a node do run them: see actors/session/stream_launches.h.
struct StreamCollectives {
  launches @0 :List(List(LaunchRun));  # of each device of the node
  tellsFailures @1 :List(Bool);  # of each collective of the plan
  groups @2 :List(Group);  # those with devices of the node
  hasMessages @3 :Bool;  # launches are those of messages, too

  struct LaunchRun {
    phase @0 :UInt32;
    count @1 :UInt32;
  }
  struct Group {
    devices @0 :List(UInt32);
    id @1 :Data;
    use @2 :UInt8;  # transport::GroupUse
  }
}

# Between the node and another one: see link_probe.h.
struct LinkFigures {
  rank @0 :UInt32;
  bytesPerS @1 :Float64;
  latencyS @2 :Float64;
}

# Both numbers in the order of keepStates.
struct KeptTile {
  state @0 :UInt32;
  tile @1 :UInt32;
}

interface Observer {
  # The fetches are the tiles that the node's fetch actors have written, in the order of devices,
  # actors and micro-batches.
  stepDone @0 (generation :UInt32, step :Int64, reports :List(DeviceReport), fetches :ChunkedBytes) -> ();
  error @1 (generation :UInt32, device :UInt32, step :Int64, status :Status) -> ();
  failure @2 (generation :UInt32, status :Status) -> ();
  # The node's devices stand still, and the policy of a stage declines what could run. Repeated
  # while that lasts. The coordinator asks all nodes for their activity.
  declined @3 (generation :UInt32) -> ();
  # The node hears nothing from the node of another device: see UcxOptions::on_cut_link. Once for each
  # two devices.
  linkCut @4 (generation :UInt32, device :UInt32) -> ();
}

# Bytes whose number both sides know: in the message if they are few, otherwise read from `source`.
struct ChunkedBytes {
  union {
    embedded @0 :Data;
    source @1 :Source;
  }
}

# Good for as long as the call is under way that it came with.
interface Source {
  read @0 (offset :UInt64, size :UInt32) -> Chunk;
}

# As many bytes as were asked for, or none and an error.
struct Chunk {
  bytes @0 :Data;
  status @1 :Status;
}

# What goes to another node and comes from it, or is copied within the node.
struct ExchangePeer {
  rank @0 :UInt32;
  address @1 :Data;
  sends @2 :List(StatePart);
  receives @3 :List(StatePart);
}

struct StatePart {
  state @0 :UInt32;  # to send: in the order of keepStates; to receive: of the session's plan
  tile @1 :UInt32;   # to send: in the order of keepStates
  offset @2 :List(Int64);  # a box of elements of the state
  shape @3 :List(Int64);
}

struct SessionSpec {
  generation @0 :UInt32;
  plan @1 :ChunkedBytes;  # as in a plan file, with the actors of these devices alone
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
  initStates @12 :Bool = true;  # false: they will be set before the first step
  traceEvery @14 :Int64 = 1;
  capturesGraphs @15 :Bool = true;  # see SessionOptions
  linkTimeoutMs @16 :UInt32;  # see UcxOptions
  sharesCores @13 :Bool;  # the devices of its host have more threads than the host has cores
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

# What a device or a stage waits for.
struct Wait {
  text @0 :Text;
  mayBeCause @1 :Bool;  # the others may wait for this one
}

# See actors/engine/device_snapshot.h.
struct DeviceState {
  device @0 :UInt32;
  state @1 :UInt8;
  running @2 :Text;
  step @3 :Int64;
  ageNs @4 :Int64;
  idleNs @5 :Int64;
  stillNs @6 :Int64;
  communications @7 :List(UInt64);
  waits @8 :List(DeviceWait);
  collectiveNs @9 :Int64;
  transferNs @10 :Int64;
  microbatches @11 :Int64;
  channels @12 :ChannelUse;
  graphs @13 :Text;
}

struct ChannelUse {
  credits @0 :UInt64;
  creditsInUse @1 :UInt64;
  tokensWaiting @2 :UInt64;
  bytesInUse @3 :UInt64;
}

struct DeviceWait {
  actor @0 :Text;
  what @1 :Text;
  communication @2 :UInt32 = 0xffffffff;
}

# See job_status.h.
struct JobStatus {
  id @0 :Text;
  name @1 :Text;
  strategy @2 :Text;
  host @3 :Text;
  pid @4 :Int64;
  activity @5 :Text;
  note @6 :Text;
  stepsDone @7 :Int64;
  steps @8 :Int64;
  loss @9 :Float64;
  stepTimeS @10 :Float64;
  tokensPerS @11 :Float64;
  ageS @12 :Float64;
  processes @13 :List(Process);
  devices @14 :List(Device);
  waits @15 :List(ActorWait);
  roots @16 :List(UInt32);
  cycles @17 :List(List(UInt32));
  microbatches @18 :Int64;
  session @19 :UInt64;

  struct Process {
    rank @0 :UInt32;
    pid @1 :Int64;
    host @2 :Text;
    answers @3 :Bool;
    silenceNs @4 :Int64;
    residentBytes @5 :UInt64;
    firstDevice @6 :UInt32;
    numDevices @7 :UInt32;
  }
  struct Device {
    state @0 :DeviceState;
    stage @1 :UInt32;
    memoryBytes @2 :UInt64;
    waitsFor @3 :List(UInt32);
    numPending @4 :UInt32;
  }
  struct ActorWait {
    actor @0 :Text;
    device @1 :UInt32;
    what @2 :Text;
    devices @3 :List(UInt32);
  }
}

struct Status {
  code @0 :UInt32;  # of absl::StatusCode; 0: OK
  message @1 :Text;
  # Where the error arose, as far as that is known: see actors/engine/error_origin.h. What a node
  # says of a rank does not count: the coordinator knows whom it has asked.
  rank @2 :Int32 = -1;
  device @3 :Int32 = -1;
  step @4 :Int64 = -1;
  actor @5 :Text;
  # The rank of the node that the error is about as well, of one between two nodes.
  peer @6 :Int32 = -1;
}
