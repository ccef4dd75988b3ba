# SPDX-License-Identifier: Apache-2.0
"""Anomalies found by principal components that the ranks compute together. Run it with

p4reduce-lab exec -n 8 -- python examples/methods/anomalies.py
"""

from __future__ import annotations

import numpy as np
import p4reduce
from p4reduce.methods.pca import SubspaceDetector
from sklearn import datasets, decomposition, metrics

COMPONENTS = 8


def main() -> None:
    """Learns what benign tumours look like, and recognises malignant ones by what is left over."""
    data = datasets.load_breast_cancer()
    anomalies = data.target == 0
    normal = data.data[~anomalies]
    mean, spread = normal.mean(axis=0), normal.std(axis=0)
    normal, samples = (normal - mean) / spread, (data.data - mean) / spread
    with p4reduce.init() as comm:
        before = comm.stats.bytes_sent
        detector = SubspaceDetector(comm, COMPONENTS, false_alarms=0.01)
        detector.fit(np.array_split(normal, comm.size)[comm.rank])
        sent = comm.stats.bytes_sent - before
        area = metrics.roc_auc_score(anomalies, -detector.score_samples(samples))
        found = detector.predict(samples) == -1

        alone = decomposition.PCA(COMPONENTS, svd_solver="full").fit(normal)
        left = samples - alone.inverse_transform(alone.transform(samples))
        area_alone = metrics.roc_auc_score(anomalies, (left**2).sum(axis=1))
        assert abs(area - area_alone) <= 1e-3
        if comm.rank == 0:
            print(
                f"{comm.size} ranks: area under the curve {area:.4f}, one process "
                f"{area_alone:.4f}; {found[anomalies].mean():.0%} of the anomalies found at "
                f"{found[~anomalies].mean():.1%} false alarms; {sent / 1e3:.1f} kB sent per rank"
            )


if __name__ == "__main__":
    main()
