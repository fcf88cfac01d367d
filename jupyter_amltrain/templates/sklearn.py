# %%aml_submit --gpus 0 --out accuracy
"""Classify images of digits with scikit-learn: a cross-validated support vector machine."""

import os

import joblib
import mlflow
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

# Try other values without an edit: --param c=10
c = 1.0
gamma = 0.02
seed = 0

mlflow.log_params({"c": c, "gamma": gamma, "seed": seed})
images, labels = load_digits(return_X_y=True)  # 1,797 images of 8 x 8 pixels, part of scikit-learn
train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.25, random_state=seed, stratify=labels)

model = make_pipeline(StandardScaler(), SVC(C=c, gamma=gamma))
for fold, score in enumerate(cross_val_score(model, train_x, train_y, cv=5)):
    mlflow.log_metric("fold_accuracy", score, step=fold)

model.fit(train_x, train_y)
accuracy = float(model.score(test_x, test_y))
mlflow.log_metric("accuracy", accuracy)
print(f"accuracy on {len(test_y)} images that were not used for training: {accuracy:.3f}")

joblib.dump(model, os.path.join(os.environ["AML_OUTPUT_DIR"], "model.joblib"))
