# SPDX-License-Identifier: Apache-2.0
"""What does a worker cost: processor time, copies, and over half an hour memory?"""
