//! Constraints that leave nothing of a space.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{
    super::{Point, Space},
    diagnostic::DiagnosticKind,
    node::Content,
    read::{Reader, Values},
};

/// The random points that are tried; suggesters give up after as many.
const TRIES: usize = 10_000;
/// Parameters times constraints: nobody writes more, and trying would take too long.
const LARGEST: usize = 10_000;

/// The first constraint that no point satisfies, and whether it is so alone; none if some point satisfies all of them.
fn infeasible(space: &Space) -> Option<(usize, bool)> {
    let dims = space.to_dims().ok()?;
    let constraints = space.constraints();
    let mut is_satisfied = vec![false; constraints.len()];
    // How many constraints, from the first one on, a point satisfies together.
    let mut together = 0;
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    for _ in 0..TRIES {
        let point: Point = dims.build(|_, dim| dim.at(rng.random()));
        let Ok(params) = space.decode(&point) else { continue };
        let holds: Vec<bool> = constraints.iter().map(|constraint| constraint.holds(&params)).collect();
        together = together.max(holds.iter().take_while(|holds| **holds).count());
        if together == constraints.len() {
            return None;
        }
        for (seen, holds) in is_satisfied.iter_mut().zip(holds) {
            *seen |= holds;
        }
    }
    let alone = is_satisfied.iter().position(|seen| !seen);
    Some(alone.map_or((together, false), |place| (place, true)))
}

impl Reader<'_> {
    /// Constraints that leave no point to suggest. A grid has points of its own.
    pub(super) fn refuse_infeasible(&mut self, values: &Values<'_>, space: &Space) {
        if space.constraints().is_empty()
            || !self.is_clean_below("space")
            || !self.is_clean_below("constraints")
        {
            return;
        }
        if space.parameters().len().saturating_mul(space.constraints().len()) > LARGEST {
            return;
        }
        let Some((number, alone)) = infeasible(space) else { return };
        let Some(node) = values.raw("constraints") else { return };
        let place = match &node.content {
            Content::List(nodes) => nodes.get(number).map_or(node.place, |node| node.place),
            Content::Scalar(_) | Content::Map(_) => node.place,
        };
        let mistake = DiagnosticKind::Infeasible { tries: TRIES, alone };
        self.wrong(place, &format!("constraints[{number}]"), mistake);
    }
}
