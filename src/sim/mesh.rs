//! Linear interpolation inside tetrahedra.
//!
//! The authors interpolate step times on more than four nodes over the Delaunay triangulation of (nodes, GPUs, batch).
//! Such points lie on a grid, where many triangulations are Delaunay and give other times; so the one their tool chose is
//! part of the data, and only its use is here.

/// A point of the space, and the values there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vertex {
    pub(super) at: [f64; 3],
    pub(super) values: [f64; 2],
}

/// How far outside of a tetrahedron a point may seem to be by rounding.
const ROUNDING: f64 = 1e-9;

#[derive(Debug)]
struct Tetrahedron {
    low: [f64; 3],
    high: [f64; 3],
    corner: [f64; 3],
    /// Maps the way from the corner to the shares of the other three vertices.
    inverse: [[f64; 3]; 3],
    vertices: [usize; 4],
}

#[derive(Debug)]
pub(super) struct Mesh {
    vertices: Vec<Vertex>,
    tetrahedra: Vec<Tetrahedron>,
}

impl Mesh {
    /// Flat tetrahedra are left out: their neighbours cover the same points.
    pub(super) fn new(vertices: Vec<Vertex>, corners: impl IntoIterator<Item = [usize; 4]>) -> Self {
        let tetrahedra =
            corners.into_iter().filter_map(|corners| Tetrahedron::new(&vertices, corners)).collect();
        Self { vertices, tetrahedra }
    }

    /// The values at a point; none outside of the mesh.
    pub(super) fn at(&self, point: [f64; 3]) -> Option<[f64; 2]> {
        self.tetrahedra.iter().find_map(|tetrahedron| {
            let shares = tetrahedron.shares(point)?;
            let mut values = [0.0; 2];
            for (&vertex, share) in tetrahedron.vertices.iter().zip(shares) {
                for (value, corner) in values.iter_mut().zip(self.vertices[vertex].values) {
                    *value += share * corner;
                }
            }
            Some(values)
        })
    }
}

impl Tetrahedron {
    fn new(all: &[Vertex], vertices: [usize; 4]) -> Option<Self> {
        let points = vertices.map(|vertex| all[vertex].at);
        let corner = points[0];
        let mut sides = [[0.0; 3]; 3];
        for (column, point) in points[1..].iter().enumerate() {
            for axis in 0..3 {
                sides[axis][column] = point[axis] - corner[axis];
            }
        }
        let fold = |axis: usize, by: fn(f64, f64) -> f64| {
            points[1..].iter().map(|point| point[axis]).fold(corner[axis], by)
        };
        let (low, high) =
            ([0, 1, 2].map(|axis| fold(axis, f64::min)), [0, 1, 2].map(|axis| fold(axis, f64::max)));
        Some(Self { low, high, corner, inverse: inverse(&sides)?, vertices })
    }

    fn shares(&self, point: [f64; 3]) -> Option<[f64; 4]> {
        let inside = |axis: usize| {
            let slack = ROUNDING * (1.0 + point[axis]);
            point[axis] >= self.low[axis] - slack && point[axis] <= self.high[axis] + slack
        };
        if !(0..3).all(inside) {
            return None;
        }
        let way = [0, 1, 2].map(|axis| point[axis] - self.corner[axis]);
        let share = |row: &[f64; 3]| row[0] * way[0] + row[1] * way[1] + row[2] * way[2];
        let [b, c, d] = [0, 1, 2].map(|row| share(&self.inverse[row]));
        let shares = [1.0 - b - c - d, b, c, d];
        shares.iter().all(|&share| share >= -ROUNDING).then_some(shares)
    }
}

/// The inverse of a 3 by 3 matrix; none if it is flat.
fn inverse(m: &[[f64; 3]; 3]) -> Option<[[f64; 3]; 3]> {
    let minor = |r: usize, c: usize| {
        let (r1, r2, c1, c2) = ((r + 1) % 3, (r + 2) % 3, (c + 1) % 3, (c + 2) % 3);
        m[r1][c1] * m[r2][c2] - m[r1][c2] * m[r2][c1]
    };
    let determinant: f64 = (0..3).map(|c| m[0][c] * minor(0, c)).sum();
    if determinant.abs() < 1e-9 {
        return None;
    }
    Some([0, 1, 2].map(|r| [0, 1, 2].map(|c| minor(c, r) / determinant)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_linear_inside_and_nothing_is_known_outside() {
        let value = |at: [f64; 3]| [1.0 + 2.0 * at[0] - at[1] + 0.5 * at[2], at[2]];
        let corners = [[0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 4.0], [2.0, 2.0, 4.0]];
        let vertices = corners.map(|at| Vertex { at, values: value(at) }).to_vec();
        let mesh = Mesh::new(vertices, [[0, 1, 2, 3], [1, 2, 3, 4], [0, 1, 1, 3]]);
        assert_eq!(mesh.tetrahedra.len(), 2, "the flat one is left out");
        for at in [[0.25, 0.5, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 2.5]] {
            let found = mesh.at(at).unwrap();
            assert!(
                found.iter().zip(value(at)).all(|(found, value)| (found - value).abs() < 1e-12),
                "{at:?}"
            );
        }
        assert!(mesh.at([2.0, 2.0, 0.0]).is_none());
    }
}
