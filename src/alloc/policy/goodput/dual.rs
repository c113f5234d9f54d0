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
    /// By trial, utility minus price of its best choice at the prices; 0 for pinned ones.
    pub(super) gains: Vec<f64>,
    /// Sums that differ by a smaller share are the same.
    pub(super) rounding: f64,
}

const BISECTIONS: usize = 120;
/// Cuts of the ellipsoid method for each pool.
const CUTS: usize = 60;
/// Choices (of a trial, in a pool) that may be weighed for one pool's price, and for all cuts.
const WEIGHED_MAX: usize = 20_000_000;

impl Dual {
    /// Minimises the dual function. Any prices give a valid bound, so stopping early costs only tightness.
    pub(super) fn solve(menus: &[Option<Menu>], supply: &[u32], rounding: f64) -> Self {
        let pools = supply.len();
        let market = Market { menus, supply };
        // If GPUs cost nothing everybody takes the best there is: a bound that exists for any fairness.
        let mut best = Self {
            prices: vec![0.0; pools],
            bound: market.value(&vec![0.0; pools]).0,
            gains: Vec::new(),
            rounding,
        };
        best.improve(&market, &vec![market.common_price(); pools]);
        if pools > 1 {
            let round = pools * menus.len().max(1);
            if pools * BISECTIONS * round <= WEIGHED_MAX {
                for pool in 0..pools {
                    let mut prices = best.prices.clone();
                    prices[pool] = market.clearing_price(&mut prices, pool);
                    best.improve(&market, &prices);
                }
            }
            best.cut(&market, (CUTS * pools).min(WEIGHED_MAX / round));
        }
        let gain = |menu: &Option<Menu>| menu.as_ref().map_or(0.0, |menu| menu.choose(&best.prices).1);
        best.gains = menus.iter().map(gain).collect();
        best
    }

    /// Whether a plan with this sum of utilities is optimal, up to rounding.
    pub(super) fn proves(&self, total: f64) -> bool {
        self.bound.is_finite() && self.bound - total <= self.rounding * (1.0 + self.bound.abs())
    }

    fn improve(&mut self, market: &Market, prices: &[f64]) {
        let bound = market.value(prices).0;
        if bound < self.bound {
            self.bound = bound;
            self.prices.copy_from_slice(prices);
        }
    }

    /// The ellipsoid method with deep cuts: the dual function has kinks where prices of several pools must move together,
    /// which moving one price at a time does not get past.
    fn cut(&mut self, market: &Market, cuts: usize) {
        let n = self.prices.len();
        let dimension = n as f64;
        let mut center = self.prices.clone();
        let spread = center.iter().fold(1e-6, |max: f64, price| max.max(*price));
        let mut shape = vec![vec![0.0; n]; n];
        for (i, row) in shape.iter_mut().enumerate() {
            row[i] = dimension * (2.0 * spread).powi(2);
        }
        for _ in 0..cuts {
            let (slope, excess) = if let Some(negative) = center.iter().position(|&price| price < 0.0) {
                let mut slope = vec![0.0; n];
                slope[negative] = -1.0;
                (slope, -center[negative])
            } else {
                let (value, slope) = market.value(&center);
                let excess = value - self.bound;
                if value < self.bound {
                    self.bound = value;
                    self.prices.copy_from_slice(&center);
                }
                (slope, excess.max(0.0))
            };
            let pull: Vec<f64> = shape.iter().map(|row| dot(row, &slope)).collect();
            let width = dot(&pull, &slope).max(0.0).sqrt();
            let depth = excess / width;
            if !(width > 0.1 * self.rounding * (1.0 + self.bound.abs()) && depth < 1.0) {
                return;
            }
            let step = (1.0 + dimension * depth) / (dimension + 1.0);
            let shrink = 2.0 * step / (1.0 + depth);
            let grow = dimension * dimension / (dimension * dimension - 1.0) * (1.0 - depth * depth);
            for i in 0..n {
                center[i] -= step * pull[i] / width;
                for j in 0..n {
                    shape[i][j] = grow * (shape[i][j] - shrink * pull[i] * pull[j] / (width * width));
                }
            }
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

struct Market<'a> {
    menus: &'a [Option<Menu>],
    supply: &'a [u32],
}

impl Market<'_> {
    /// The dual function, what everybody gains at these prices plus what the GPUs are worth, and a subgradient of it:
    /// supply minus demand.
    fn value(&self, prices: &[f64]) -> (f64, Vec<f64>) {
        let mut slope: Vec<f64> = self.supply.iter().map(|&gpus| f64::from(gpus)).collect();
        let mut value = dot(&slope, prices);
        for menu in self.menus.iter().flatten() {
            let (chosen, gain) = menu.choose(prices);
            value += gain;
            if let Some((pool, gpus)) = chosen {
                slope[pool] -= f64::from(gpus);
            }
        }
        (value, slope)
    }

    /// The one price for all pools at which no more GPUs are wanted than there are.
    fn common_price(&self) -> f64 {
        let supply = self.supply.iter().map(|&gpus| u64::from(gpus)).sum();
        let mut prices = vec![0.0; self.supply.len()];
        bisect(self.top_price(), |price| {
            prices.fill(price);
            self.wanted(&prices, None) <= supply
        })
    }

    /// The price of one pool at which no more of its GPUs are wanted than there are.
    fn clearing_price(&self, prices: &mut [f64], pool: usize) -> f64 {
        bisect(self.top_price(), |price| {
            prices[pool] = price;
            self.wanted(prices, Some(pool)) <= u64::from(self.supply[pool])
        })
    }

    fn top_price(&self) -> f64 {
        let pools = self.menus.iter().flatten().flat_map(|menu| &menu.pools);
        pools.map(super::menu::PoolMenu::top_price).fold(0.0, f64::max)
    }

    fn wanted(&self, prices: &[f64], only: Option<usize>) -> u64 {
        let demand = |menu: &Menu| match menu.choose(prices).0 {
            Some((pool, gpus)) if only.is_none_or(|only| only == pool) => u64::from(gpus),
            _ => 0,
        };
        self.menus.iter().flatten().map(demand).sum()
    }
}

/// The lowest price (up to rounding) that is high enough; 0 if any is.
fn bisect(top: f64, mut enough: impl FnMut(f64) -> bool) -> f64 {
    if enough(0.0) {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, top);
    for _ in 0..BISECTIONS {
        // Utilities span decades, so halve logarithms once the interval is away from 0.
        let middle = if low > 0.0 { f64::sqrt(low * high) } else { 0.125 * high };
        if enough(middle) {
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
