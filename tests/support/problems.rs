//! Random allocation problems, for the tests of all policies.

use pollux_tune::{
    alloc::{Allocation, Cluster, Fairness, Node, Problem, RemainingWork, TrialRequest},
    goodput::{Curve, GoodputTable, Shape},
    ids::{GpuType, NodeId, TrialId},
};
use proptest::prelude::*;

/// A trial before it is put into a cluster. What it has now comes from `place`.
#[derive(Debug, Clone)]
struct Draft {
    /// Goodput of one GPU, the share of time that does not scale, and what spanning nodes costs; by GPU type.
    types: Vec<Option<(f64, f64, f64)>>,
    /// With fewer GPUs the goodput is 0.
    memory_gpus: u32,
    table_gpus: u32,
    /// Least number of GPUs, and how many more it may have.
    limits: (u32, u32),
    /// GPUs it has now, from this node on; 0 while it waits.
    place: (u32, usize),
    pinned: bool,
    weight: f64,
    age_s: f64,
    reallocations: u32,
    realloc_delay_s: f64,
    attained_gpu_s: f64,
    requested_gpus: u32,
    remaining_examples: f64,
}

/// What happens to nodes after trials were placed: the node goes, or loses this many GPUs.
type Loss = (usize, Option<u32>);

/// 1 to 6 nodes of 1 to 8 GPUs, one or two types and islands, sometimes with losses since the trials were
/// placed, and 0 to 10 trials. All problems pass [`Problem::check`]; what trials have was valid before the
/// losses.
pub(crate) fn problems() -> impl Strategy<Value = Problem> {
    let node = |types: u32, islands: u32| (0..types, 0..islands, 1_u32..=8);
    let nodes = (1_u32..=2, prop_oneof![3 => Just(1_u32), 1 => Just(2_u32)])
        .prop_flat_map(move |(types, islands)| prop::collection::vec(node(types, islands), 1..=6));
    let loss = (0_usize..6, prop_oneof![Just(None), (1_u32..=8).prop_map(Some)]);
    let losses = prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(loss, 1..=3)];
    let fairness = prop_oneof![3 => Just(-1.0), 1 => -5.0..3.0_f64];
    let drafts = prop::collection::vec(drafts(), 0..=10);
    (nodes, drafts, losses, fairness, any::<bool>()).prop_map(|(nodes, drafts, losses, p, avoid)| {
        let mut problem = build(&nodes, &drafts, avoid);
        problem.fairness = Fairness::new(p).expect("p is within its range");
        lose(&mut problem.cluster, &losses);
        problem
    })
}

fn drafts() -> impl Strategy<Value = Draft> {
    let kind = prop_oneof![4 => (0.1..100.0, 0.0..0.5, 0.0..0.6).prop_map(Some), 1 => Just(None)];
    let speed = (
        prop::collection::vec(kind, 2),
        prop_oneof![4 => Just(0_u32), 1 => 0_u32..4],
        prop_oneof![3 => Just(64_u32), 1 => 1_u32..10],
    );
    let limits = (prop_oneof![3 => Just(1_u32), 1 => 1_u32..10], prop_oneof![Just(64), 0_u32..8]);
    let place = (prop_oneof![Just(0), 1_u32..12], 0_usize..6);
    let history = (
        prop_oneof![Just(0.0), 0.0..5000.0_f64],
        0_u32..20,
        prop_oneof![Just(0.0), 0.0..120.0_f64],
        prop_oneof![Just(0.0), 0.0..200_000.0_f64],
    );
    let wishes = (0_u32..20, prop_oneof![Just(0.0), 1.0..1e7_f64]);
    let rest = (prop::bool::weighted(0.15), prop_oneof![3 => Just(1.0), 1 => 0.1..10.0_f64]);
    (speed, limits, place, history, wishes, rest).prop_map(|(speed, limits, place, history, wishes, rest)| {
        Draft {
            types: speed.0,
            memory_gpus: speed.1,
            table_gpus: speed.2,
            limits,
            place,
            pinned: rest.0,
            weight: rest.1,
            age_s: history.0,
            reallocations: history.1,
            realloc_delay_s: history.2,
            attained_gpu_s: history.3,
            requested_gpus: wishes.0,
            remaining_examples: wishes.1,
        }
    })
}

fn gpu_type(index: usize) -> GpuType {
    GpuType::new(["t4", "a100"][index]).expect("a plain name")
}

fn table(draft: &Draft) -> GoodputTable {
    let curve = |&(one, serial, network): &(f64, f64, f64)| {
        let goodput = |shape: Shape| {
            let gpus = f64::from(shape.gpus());
            if shape.gpus() < draft.memory_gpus {
                return 0.0;
            }
            // Amdahl's law with a ripple, because real tables are not quite concave.
            let ripple = 0.05f64.mul_add((gpus * 1.7).sin(), 1.0);
            let spread = if shape.nodes() > 1 { 1.0 - network } else { 1.0 };
            one * gpus / (serial * (gpus - 1.0) + 1.0) * ripple * spread
        };
        Curve::build(draft.table_gpus, 8, goodput).expect("goodputs are finite")
    };
    let types = draft.types.iter().enumerate();
    types.filter_map(|(index, kind)| kind.as_ref().map(|kind| (gpu_type(index), curve(kind)))).collect()
}

fn build(nodes: &[(u32, u32, u32)], drafts: &[Draft], avoid_interference: bool) -> Problem {
    let mut cluster = Cluster::new();
    for (index, &(kind, island, gpus)) in nodes.iter().enumerate() {
        let node = Node { gpu_type: gpu_type(kind as usize), gpus, island };
        // Numbers with gaps, as after nodes have gone.
        cluster.add(NodeId(3 * index as u32 + 1), node).expect("numbers differ");
    }
    let mut free: Vec<u32> = nodes.iter().map(|node| node.2).collect();
    let mut spanned = vec![false; nodes.len()];
    let trials = drafts.iter().enumerate().map(|(index, draft)| {
        let (min_gpus, more) = draft.limits;
        let max_gpus = min_gpus + more;
        TrialRequest {
            min_gpus,
            max_gpus,
            current: take(nodes, &mut free, &mut spanned, draft, avoid_interference),
            pinned: draft.pinned,
            weight: draft.weight,
            age_s: draft.age_s,
            reallocations: draft.reallocations,
            realloc_delay_s: draft.realloc_delay_s,
            attained_gpu_s: draft.attained_gpu_s,
            requested_gpus: draft.requested_gpus,
            remaining: RemainingWork::Examples(draft.remaining_examples),
            ..TrialRequest::new(TrialId(7 * index as u32), table(draft))
        }
    });
    let trials = trials.collect();
    Problem { avoid_interference, ..Problem::new(cluster, trials) }
}

/// The GPUs a trial has: about as many as wished, within its limits, of one type and island.
fn take(
    nodes: &[(u32, u32, u32)],
    free: &mut [u32],
    spanned: &mut [bool],
    draft: &Draft,
    avoid_interference: bool,
) -> Allocation {
    let (wished, first) = draft.place;
    if wished == 0 {
        return Allocation::none();
    }
    let mut missing = wished.clamp(draft.limits.0, draft.limits.0 + draft.limits.1);
    let first = first % nodes.len();
    let (mut taken, mut gpus) = (Vec::new(), 0);
    for (node, kind) in nodes.iter().enumerate().skip(first) {
        let home = (kind.0, kind.1) == (nodes[first].0, nodes[first].1);
        let joins = !avoid_interference || taken.is_empty() || !(spanned[node] || spanned[taken[0]]);
        let count = free[node].min(missing);
        if home && joins && count > 0 {
            taken.push(node);
            missing -= count;
            gpus += count;
        }
    }
    if gpus < draft.limits.0 {
        return Allocation::none();
    }
    let mut counts = Vec::new();
    for &node in &taken {
        let count = free[node].min(gpus);
        gpus -= count;
        free[node] -= count;
        spanned[node] |= taken.len() > 1;
        counts.push((NodeId(3 * node as u32 + 1), count));
    }
    counts.into_iter().collect()
}

fn lose(cluster: &mut Cluster, losses: &[Loss]) {
    for &(index, gpus) in losses {
        let id = NodeId(3 * index as u32 + 1);
        let Some(node) = cluster.get(id) else { continue };
        let left = gpus.map(|lost| node.gpus.saturating_sub(lost));
        let done = match left {
            Some(left) => cluster.set_gpus(id, left),
            None => cluster.remove(id).map(|_| ()),
        };
        done.expect("the node is there");
    }
}
