//! Prices of GPUs: the Lagrangian relaxation of the allocation problem.
//!
//! Forgetting nodes and keeping only how many GPUs each pool has, every trial can choose on its own once a GPU has a
//! price. The prices at which demand meets supply give a bound that no plan can exceed, and say what a GPU is worth.

use super::menu::Menu;

pub(super) struct Dual {
    /// Utility per GPU, by pool.
    pub(super) prices: Vec<f64>,
    /// No plan has a larger sum of utilities over the trials that are free to choose.
    pub(super) bound: f64,
}

const SWEEPS: usize = 6;
const BISECTIONS: usize = 40;

impl Dual {
    /// Minimises the dual by bisection, one pool after another. With one pool that is exact; with several every
    /// set of prices still gives a valid bound.
    pub(super) fn solve(menus: &[Option<Menu>], supply: &[u32]) -> Self {
        let mut prices = vec![0.0; supply.len()];
        let top =
            |pool: usize| menus.iter().flatten().map(|menu| menu.pools[pool].top_price()).fold(0.0, f64::max);
        let tops: Vec<f64> = (0..supply.len()).map(top).collect();
        let mut bound = f64::INFINITY;
        for _ in 0..if supply.len() > 1 { SWEEPS } else { 1 } {
            for pool in 0..supply.len() {
                prices[pool] = clearing_price(menus, &mut prices, pool, supply[pool], tops[pool]);
            }
            let now = value(menus, supply, &prices);
            let settled = bound - now <= 1e-9 * (1.0 + now.abs());
            bound = bound.min(now);
            if settled {
                break;
            }
        }
        if supply.is_empty() {
            bound = value(menus, supply, &prices);
        }
        Self { prices, bound }
    }
}

/// The dual function: what everybody gains at these prices, plus what the GPUs are worth.
fn value(menus: &[Option<Menu>], supply: &[u32], prices: &[f64]) -> f64 {
    let gains: f64 = menus.iter().flatten().map(|menu| menu.choose(prices).1).sum();
    gains + supply.iter().zip(prices).map(|(&gpus, price)| f64::from(gpus) * price).sum::<f64>()
}

/// The lowest price (up to rounding) at which no more GPUs of a pool are wanted than there are.
fn clearing_price(menus: &[Option<Menu>], prices: &mut [f64], pool: usize, supply: u32, top: f64) -> f64 {
    let mut wanted = |price: f64| {
        prices[pool] = price;
        let demand = |menu: &Menu| match menu.choose(prices).0 {
            Some((chosen, gpus)) if chosen == pool => u64::from(gpus),
            _ => 0,
        };
        menus.iter().flatten().map(demand).sum::<u64>()
    };
    if wanted(0.0) <= u64::from(supply) {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, top);
    for round in 0..BISECTIONS {
        // Utilities span decades, so halve logarithms once the interval is away from 0.
        let middle = if round > 3 && low > 0.0 { f64::sqrt(low * high) } else { 0.5 * (low + high) };
        if wanted(middle) <= u64::from(supply) {
            high = middle;
        } else {
            low = middle;
        }
        if high - low <= 1e-9 * high {
            break;
        }
    }
    high
}
