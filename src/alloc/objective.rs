use super::Error;

/// The exponent p of FITNESS (Pollux OSDI'21 eq. 14), the fairness knob: 1 favours trials that scale well, large
/// negative values make all speedups alike. The default is -1.
///
/// FITNESS is a power mean, so it orders plans as the plain sum of [`Fairness::utility`] over the trials does.
/// That sum is what policies work with.
///
/// ```
/// use pollux_tune::alloc::Fairness;
/// let harmonic = Fairness::new(-1.0)?;
/// let sum = harmonic.utility(1.0) + harmonic.utility(3.0);
/// assert!((harmonic.fitness(sum, 2.0) - (1.5 - Fairness::FLOOR)).abs() < 0.01);
/// # Ok::<(), pollux_tune::alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fairness(f64);

impl Default for Fairness {
    fn default() -> Self {
        Self(-1.0)
    }
}

impl Fairness {
    /// Added to every speedup, so that a trial without GPUs counts as very slow rather than infinitely bad.
    /// It is the authors' figure: their code adds 1e-3 to a quarter of the speedup.
    pub const FLOOR: f64 = 4e-3;

    /// The exponent p, from -20 to 20. Beyond that the sums leave the range of floating-point numbers; within 0.001 of 0
    /// their differences are lost to rounding, and p is taken as 0, the geometric mean.
    pub fn new(p: f64) -> Result<Self, Error> {
        if (-20.0..=20.0).contains(&p) {
            return Ok(Self(if p.abs() < 1e-3 { 0.0 } else { p }));
        }
        let owner = "fairness".to_owned();
        Err(Error::OutOfRange { owner, what: "p", value: p, allowed: "-20 to 20" })
    }

    /// The exponent.
    #[must_use]
    pub const fn p(self) -> f64 {
        self.0
    }

    /// Sums of utilities that differ by a smaller share than this make no difference that counts in FITNESS: near p = 0
    /// the root of eq. 14 magnifies it.
    pub(crate) fn rounding(self) -> f64 {
        if self.0 == 0.0 { 1e-9 } else { 1e-9 * self.0.abs().min(1.0) }
    }

    /// What one trial of weight 1 adds to the sum that orders plans; it grows with the speedup.
    #[must_use]
    pub fn utility(self, speedup: f64) -> f64 {
        let speedup = speedup + Self::FLOOR;
        match self.0 {
            -1.0 => -speedup.recip(),
            1.0 => speedup,
            0.0 => speedup.ln(),
            p if p < 0.0 => -speedup.powf(p),
            p => speedup.powf(p),
        }
    }

    /// FITNESS of a plan from the weighted sum of utilities and the sum of weights; 0 without trials.
    #[must_use]
    pub fn fitness(self, utility: f64, weights: f64) -> f64 {
        if weights <= 0.0 {
            return 0.0;
        }
        let mean = utility / weights;
        match self.0 {
            0.0 => mean.exp(),
            p if p < 0.0 => (-mean).max(0.0).powf(p.recip()),
            p => mean.max(0.0).powf(p.recip()),
        }
    }
}

/// `REALLOC_FACTOR` (Pollux OSDI'21 section 4.2): the share of its time that a trial of this age trains if it is re-allocated
/// now and is re-allocated as often as before from then on.
///
/// ```
/// use pollux_tune::alloc::realloc_factor;
/// // 300 s old, moved twice at 30 s each: (300 - 60) / (300 + 30).
/// assert!((realloc_factor(300.0, 2, 30.0) - 240.0 / 330.0).abs() < 1e-12);
/// ```
#[must_use]
pub fn realloc_factor(age_s: f64, reallocations: u32, delay_s: f64) -> f64 {
    if delay_s <= 0.0 {
        return 1.0;
    }
    f64::from(reallocations).mul_add(-delay_s, age_s).max(0.0) / (age_s + delay_s)
}
